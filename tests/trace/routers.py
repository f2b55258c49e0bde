"""Help for the router tests: blocks of tiny models, hard logits, and the routing formula in plain numpy.

The formula is written from `RouterFacts` alone and shares no code with the reader or with transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig

from benchmarks.architectures import default_config
from neuron_autoport.models.build import real_model
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import port_model
from neuron_autoport.trace.moe import MoEFacts, read_blocks
from neuron_autoport.trace.router import RouterFacts

# Fields that turn on what a type's default configuration leaves off.
CHANGES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"norm_topk_prob": True},
    "deepseek_v2": {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    "glm4_moe": {"n_group": 4, "topk_group": 2, "norm_topk_prob": True},
    "gemma4_text": {
        "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 48,
    },
    "cohere2_moe": {"expert_selection_fn": "sigmoid", "norm_topk_prob": True},
    "laguna": {"moe_router_logit_softcapping": 3.0},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2},
}  # fmt: skip


@lru_cache(maxsize=64)
def small_config(model_type: str, changed: bool = True) -> PretrainedConfig:
    config = tiny_config(default_config(model_type))
    for name, value in CHANGES.get(model_type, {}).items() if changed else ():
        assert hasattr(config, name), f"{model_type} has no {name}"
        setattr(config, name, value)
    return config


@lru_cache(maxsize=64)
def facts_of(model_type: str, changed: bool = True) -> tuple[str, MoEFacts] | None:
    """(path, facts) of the last block of a tiny model, or None if it has no block that was traced."""
    blocks = read_blocks(port_model(small_config(model_type, changed), ()).trace)
    return next(reversed(blocks.items()), None)


@dataclass
class Routed:
    """What a model's own code handed to its experts, and the block's input, float32."""

    hidden: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor


def hard_logits(experts: int, width: int) -> torch.Tensor:
    """[width, experts] logits: random, large, nearly equal, ascending, and all alike but one."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(width, experts, generator=generator) * 2
    logits[0::8] *= 8
    near = torch.stack([torch.randperm(experts, generator=generator) for _ in logits[1::8]])
    logits[1::8] = 1.0 + 2e-3 * near
    logits[2::8] = torch.linspace(-4, 4, experts)
    logits[3::8] = -30.0 + 1e-2 * near
    return logits


def run_block(config: PretrainedConfig, path: str, facts: MoEFacts) -> tuple[nn.Module, Routed]:
    """Run a real block on one-hot rows, so that each row's logits are a column of the router's weight."""
    model = real_model(config, dtype=torch.float32, attn_implementation="eager")
    block = model.get_submodule(path)
    router = facts.router
    assert isinstance(router, RouterFacts)
    weight = block.get_parameter(router.weight)
    width = weight.shape[1 if router.weight_layout == "out_in" else 0]
    logits = hard_logits(router.experts, width)
    weight.data = logits.t().clone() if router.weight_layout == "out_in" else logits.clone()
    if router.bias is not None:  # larger than any score, and unlike for each expert
        owner, _, name = router.bias.rpartition(".")
        bias = getattr(block.get_submodule(owner), name)
        steps = 4 * 0.7 ** torch.arange(router.experts) - 2  # no two of them sum to two others
        steps = steps[torch.randperm(len(steps), generator=torch.Generator().manual_seed(5))]
        bias.data = steps.reshape(bias.shape).to(bias.dtype)
    seen: list[Routed] = []
    hidden = torch.eye(width)

    def note(_: nn.Module, args: Any, kwargs: Any) -> None:
        import inspect

        experts = block.get_submodule(facts.experts_path)
        names = list(inspect.signature(inspect.unwrap(type(experts).forward)).parameters)[1:]
        given = dict(zip(names, args, strict=False)) | kwargs
        assert facts.arguments is not None
        _, indices, weights = (given[n] for n in facts.arguments)
        seen.append(Routed(hidden, indices.clone(), weights.clone()))

    handle = block.get_submodule(facts.experts_path).register_forward_pre_hook(
        note, with_kwargs=True
    )
    with torch.no_grad():
        block(hidden[None])
    handle.remove()
    return block, seen[0]


def value_of(block: nn.Module, path: str) -> np.ndarray:
    owner, _, name = path.rpartition(".")
    found: np.ndarray = getattr(block.get_submodule(owner), name).detach().double().numpy()
    return found


def choice_and_scores(
    facts: RouterFacts, block: nn.Module, hidden: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """([T, E] numbers the top-k looks at, [T, E] numbers the weights are made of), float64.

    Where two groups are as good as each other, all numbers the top-k looks at are NaN.
    """
    weight = value_of(block, facts.weight)
    x = hidden.double().numpy()
    logits = x @ (weight.T if facts.weight_layout == "out_in" else weight)
    if facts.weight_bias is not None:
        logits = logits + value_of(block, facts.weight_bias)
    if facts.soft_cap is not None:
        logits = facts.soft_cap * np.tanh(logits / facts.soft_cap)
    scores = logits if facts.score_after_top_k else score(facts.score, logits)
    choice = scores.copy()
    if facts.bias is not None:
        choice = choice + value_of(block, facts.bias).reshape(-1)
    if facts.groups is not None:
        groups = choice.reshape(len(choice), facts.groups.count, -1)
        best = np.sort(groups, axis=-1)[..., -facts.groups.best :].sum(-1)
        kept = np.argsort(-best, axis=-1)[:, : facts.groups.kept]
        mask = np.zeros(best.shape, dtype=bool)
        np.put_along_axis(mask, kept, True, axis=-1)
        mask = np.repeat(mask, groups.shape[-1], axis=-1)
        choice = np.where(mask, choice, facts.groups.fill)
        choice[~clear_rows(best, facts.groups.kept)] = np.nan
    return choice, scores


def clear_rows(numbers: np.ndarray, k: int) -> np.ndarray:
    """Rows whose k-th and next number differ by more than float32 could blur."""
    ordered = np.sort(numbers, axis=-1)[:, ::-1]
    if ordered.shape[-1] == k:
        return np.ones(len(numbers), dtype=bool)
    gap = ordered[:, k - 1] - ordered[:, k]
    return np.asarray(gap > 2e-6 * np.maximum(1, np.abs(ordered[:, k - 1])))


def score(name: str, logits: np.ndarray) -> np.ndarray:
    if name == "softmax":
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray(shifted / shifted.sum(-1, keepdims=True))
    if name == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-logits)))
    assert name == "sqrt_softplus"
    return np.asarray(np.sqrt(np.log1p(np.exp(logits))))


def formula_weights(
    facts: RouterFacts, scores: np.ndarray, indices: np.ndarray, block: nn.Module
) -> np.ndarray:
    """[T, K] weights of the chosen experts."""
    weights = np.take_along_axis(scores, indices, axis=-1)
    if facts.score_after_top_k:
        weights = score(facts.score, weights)
    if facts.renormalize:
        total = weights.sum(-1, keepdims=True)
        total = np.maximum(total, facts.eps) if facts.eps_is_floor else total + facts.eps
        weights = weights / total
    weights = weights * facts.scale
    if facts.expert_scale is not None:
        weights = weights * value_of(block, facts.expert_scale)[indices]
    return weights
