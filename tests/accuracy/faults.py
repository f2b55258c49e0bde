"""Tiny models, ports of them, and faults to inject: in a rule, in a fused function, or in the host."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuron_autoport.accuracy.candidate import Adjust, Builder, Candidate
from neuron_autoport.accuracy.explain import Asked, module_failures
from neuron_autoport.accuracy.level2 import judge_prompts
from neuron_autoport.accuracy.modules import judge_modules
from neuron_autoport.accuracy.prompts import Prompt
from neuron_autoport.accuracy.schema import Failure, Level2, Level3
from neuron_autoport.accuracy.weights import Weights, load_weights
from neuron_autoport.port import port_model
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.rule import Rule
from tests.helpers import small_config

TOKENS = 48

_weights: dict[str, Weights] = {}


def config_of(name: str) -> Any:
    """A small configuration; the name may be followed by what it is special for."""
    special: dict[str, dict[str, Any]] = {
        "llama": {"rms_norm_eps": 1e-3, "num_hidden_layers": 3},
        "tied": {"tie_word_embeddings": True},
        "gemma2": {
            "query_pre_attn_scalar": 48, "attn_logit_softcapping": 2.0, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "gemma3_text": {"query_pre_attn_scalar": 48, "sliding_window": 8},
        "stablelm": {"partial_rotary_factor": 0.25},
        "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
        "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False},
    }  # fmt: skip
    return small_config("llama" if name == "tied" else name, **special.get(name, {}))


@dataclass
class Judged:
    """Both levels' results and the failure view of level 3."""

    level3: Level3
    failures: list[Failure]
    level2: Level2 | None

    @property
    def failed(self) -> set[str]:
        return {m.path for m in self.level3.modules if not m.figures.passed}


def rules_with(folder: Path, name: str, good: str, wrong: str) -> tuple[Rule, ...]:
    """The built-in rules, one of them with its text changed."""
    text = next(r.text for r in load_rules() if r.name == name)
    assert text.count(good) == 1, text
    (folder / f"{name}.yaml").write_text(text.replace(good, wrong), encoding="utf-8")
    return load_rules([folder])


def candidate_of(name: str, rules: tuple[Rule, ...], adjust: Adjust | None = None) -> Candidate:
    """The port as planned, not proved: what is wrong in it is left for the validation to find."""
    port = port_model(config_of(name), rules)
    return Candidate(port, generate(port.plans, f"small {name}"), adjust)


def builder_of(name: str, dtype: torch.dtype) -> Builder:
    if name not in _weights:
        _weights[name] = load_weights(config_of(name))
    return Builder(_weights[name], dtype)


def ids_of(name: str, rows: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, config_of(name).vocab_size, (rows, TOKENS), generator=generator)


def judge(
    name: str,
    *,
    rules: tuple[Rule, ...] | None = None,
    adjust: Adjust | None = None,
    dtype: torch.dtype = torch.bfloat16,
    prompts: bool = False,
) -> Judged:
    """Judge a port of a small model with a fault in it."""
    rules = rules or load_rules()
    candidate, builder, ids = (
        candidate_of(name, rules, adjust),
        builder_of(name, dtype),
        ids_of(name),
    )
    level3 = judge_modules(builder, candidate, ids)
    failures = module_failures(builder, candidate, rules, ids, level3, Asked(name))
    level2 = None
    if prompts:
        rows = [Prompt(str(i), tuple(row[: TOKENS - 7 * i].tolist())) for i, row in enumerate(ids)]
        level2 = judge_prompts(builder, candidate, rows, chunk=16, steps=6)
    return Judged(level3, failures, level2)


def in_layer(number: int, change: Callable[[nn.Module], None]) -> Adjust:
    """A fault of the host in one decoder layer."""

    def adjust(path: str, unit: nn.Module) -> None:
        if path.endswith(f".layers.{number}"):
            change(unit)

    return adjust


def wrap_forward(module: nn.Module, around: Callable[..., Any]) -> None:
    """Put `around(forward, *args, **kwargs)` in the place of a module's forward."""
    forward = type(module).forward.__get__(module)
    object.__setattr__(module, "forward", lambda *a, **k: around(forward, *a, **k))


def set_scaling(value: float) -> Callable[[nn.Module], None]:
    def change(layer: nn.Module) -> None:
        layer.get_submodule("self_attn").scaling = value  # type: ignore[assignment]

    return change


def drop_softcap(layer: nn.Module) -> None:
    layer.get_submodule("self_attn").attn_logit_softcapping = None  # type: ignore[assignment]


def drop_window(layer: nn.Module) -> None:
    """Give the layer the causal mask without its window."""

    def around(forward: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs["attention_mask"]
        size = mask.shape[-1]
        causal = torch.ones(size, size, dtype=torch.bool).tril()
        lowest = torch.finfo(mask.dtype).min
        kwargs["attention_mask"] = torch.zeros_like(mask).masked_fill(~causal, lowest)
        return forward(hidden, *args, **kwargs)

    wrap_forward(layer, around)


def full_rope(layer: nn.Module) -> None:
    """Rotate the whole head where only a part of it is rotated."""
    attention: Any = layer.get_submodule("self_attn")
    attention.rotary_ndims = attention.head_dim

    def around(forward: Any, *args: Any, **kwargs: Any) -> Any:
        cos, sin = kwargs["position_embeddings"]
        times = attention.head_dim // cos.shape[-1]
        kwargs["position_embeddings"] = (cos.repeat(1, 1, times), sin.repeat(1, 1, times))
        return forward(*args, **kwargs)

    wrap_forward(attention, around)


def late_chunk(layer: nn.Module) -> None:
    """Positions one too high in every piece of more than one token after the first."""
    attention: Any = layer.get_submodule("self_attn")

    def around(forward: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values")
        hidden = args[0] if args else kwargs["hidden_states"]
        seen = cache.get_seq_length(attention.layer_idx) if cache is not None else 0
        if seen and hidden.shape[1] > 1:
            cos, sin = kwargs["position_embeddings"]
            ahead = [torch.cat([t[:, 1:], t[:, -1:]], dim=1) for t in (cos, sin)]
            kwargs["position_embeddings"] = tuple(ahead)
        return forward(*args, **kwargs)

    wrap_forward(attention, around)


def router_scores(renormalize: bool) -> Callable[[nn.Module], None]:
    """Change whether the weights of the chosen experts sum to one."""

    def change(layer: nn.Module) -> None:
        mlp: Any = layer.get_submodule("mlp")

        def around(forward: Any, *args: Any, **kwargs: Any) -> Any:
            logits, scores, chosen = forward(*args, **kwargs)
            if renormalize:
                scores = scores / scores.sum(-1, keepdim=True)
            else:
                scores = logits.float().softmax(-1).gather(-1, chosen).to(scores.dtype)
            return logits, scores, chosen

        wrap_forward(mlp.gate, around)

    return change


def other_head(path: str, unit: nn.Module) -> None:
    """An output head with weights of its own where it should be the embedding."""
    if path == "lm_head":
        weight = copy.deepcopy(unit.weight).float()
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(9))
        unit.weight = nn.Parameter((noise * weight.std()).to(unit.weight.dtype))  # type: ignore[union-attr, operator]
