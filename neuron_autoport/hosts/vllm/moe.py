"""Mixture-of-experts blocks on vLLM's engine: its fused MoE layer runs the experts, the model's own code routes.

The block's forward stays as it is: what it hands to its experts, rows, indices and weights, goes to vLLM's
layer. So every router is served as written. Where vLLM's layer cannot compute the experts that the graph
shows, transformers' experts run, and the start-up log says why.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.distributed import get_dp_group, get_ep_group
from vllm.distributed.device_communicators.base_device_communicator import (
    DeviceCommunicatorBase,
)
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import FusedMoEFactory, RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.models.transformers.moe import (
    TransformersMoERunner,
    TransformersMoEState,
    TransformersRoutedExperts,
)
from vllm.platforms import current_platform

from neuron_autoport.hosts.vllm.expert_weights import Part, checkpoint_parts, load_fused, load_plain
from neuron_autoport.hosts.vllm.moe_limits import activation_of, few_rows, refusal
from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.moe import MoEFacts, read_blocks


@dataclass(frozen=True)
class Hosted:
    """How one class of blocks is served. `reason`: why transformers' experts run, or None."""

    block: str
    class_name: str
    facts: MoEFacts
    reason: str | None

    def line(self) -> str:
        """For the start-up log."""
        head = f"{self.block} ({self.class_name}): {self.facts.summary()}"
        if self.reason is None:
            return f"{head} → vLLM's fused MoE layer"
        return f"{head} → transformers' experts run: {self.reason}"


def why_not(facts: MoEFacts, vllm_config: Any) -> str | None:
    """Why vLLM's layer cannot run these experts in this engine, or None if it can."""
    parallel = vllm_config.parallel_config
    if parallel.data_parallel_size > 1 and not _gathers_rows():
        return "vLLM's engine on this platform cannot gather rows of several data-parallel ranks"
    return refusal(
        facts,
        ranks=1 if parallel.enable_expert_parallel else parallel.tensor_parallel_size,
        cpu=current_platform.is_cpu(),
        quantized=vllm_config.quant_config is not None,
    )


def _gathers_rows() -> bool:
    """Can this platform's communicator gather and scatter as many rows as each rank has?"""
    own = type(get_ep_group().device_communicator)
    base = DeviceCommunicatorBase
    return (
        own.all_gatherv is not base.all_gatherv and own.reduce_scatterv is not base.reduce_scatterv
    )


class HostedExperts(TransformersMoERunner):
    """vLLM's fused MoE layer in the place of transformers' experts, with their call and their weights."""

    facts: MoEFacts
    names: tuple[str, ...]
    parts: dict[str, Part]
    interleave: bool

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the experts were called: rows [..., H], indices [T, K], weights [T, K], by their names.

        Or, where they were given a weighted copy of all rows for each of them, with that alone.
        """
        given = dict(zip(self.names, args, strict=False)) | kwargs
        if self.facts.arguments is None:
            return self.of_copies(next(iter(given.values())))
        rows, indices, weights = (given[name] for name in self.facts.arguments)
        out: torch.Tensor = super().forward(rows.reshape(-1, rows.shape[-1]), indices, weights)
        return out.view(rows.shape)

    def of_copies(self, copies: torch.Tensor) -> torch.Tensor:
        """Experts on [E * T, H], of which all but a few copies of each token are zero, and stay so."""
        known, count = self.facts.experts, few_rows(self.facts)
        assert isinstance(known, ExpertsFacts) and count is not None
        rows, indices = chosen_copies(copies, known.experts, count)
        once = torch.ones_like(indices, dtype=copies.dtype)
        made = super().forward(rows, indices, once)
        return put_back(made, indices, known.experts, len(copies) // known.experts)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[str]:
        facts = self.facts.experts
        assert isinstance(facts, ExpertsFacts)
        if not isinstance(self.routed_experts.quant_method, UnquantizedFusedMoEMethod):
            yield from super().load_weights(weights)  # it knows scales and packed numbers
            return
        yield from load_fused(self.routed_experts, facts, self.interleave, self.parts, weights)


def chosen_copies(
    copies: torch.Tensor, experts: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that are not zero, of one copy of all tokens for each expert.

    Args:
        copies: [experts * T, H], of each token all but `count` copies zero.

    Returns:
        rows [T * count, H], and the expert of each [T * count, 1]. Shapes do not depend on values.
    """
    by_expert = copies.view(experts, -1, copies.shape[-1])
    indices = by_expert.abs().amax(-1).t().topk(count, dim=-1).indices
    tokens = torch.arange(indices.shape[0], device=copies.device)[:, None]
    return by_expert[indices, tokens].flatten(0, 1), indices.reshape(-1, 1)


def put_back(made: torch.Tensor, indices: torch.Tensor, experts: int, tokens: int) -> torch.Tensor:
    """[experts * T, H] with the rows of `chosen_copies` at their places, zero elsewhere.

    Args:
        made: one row for each index. indices: from `chosen_copies`. experts: how many copies there are.
    """
    out = made.new_zeros(experts, tokens, made.shape[-1])
    of = indices.view(tokens, -1)
    out[of, torch.arange(tokens, device=made.device)[:, None]] = made.view(*of.shape, -1)
    return out.flatten(0, 1)


class _Routing:
    """vLLM's routing hook: the block has routed already, its choice is handed on.

    Indices travel beside the layer's call (`TransformersMoEState`), weights in the place of logits.
    """

    def __init__(self, state: TransformersMoEState) -> None:
        self.state = state
        self.routed: RoutedExperts | None = None

    def __call__(
        self, hidden_states: torch.Tensor, gating_output: torch.Tensor, topk: int, renormalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights, indices = gating_output, self.state.topk_ids
        assert indices is not None
        if indices.size(0) != hidden_states.size(0):
            indices = self.gathered(indices)
        table = self.routed.expert_map if self.routed is not None else None
        if table is not None and current_platform.is_cpu():
            # vLLM's CPU kernels take indices of this rank's experts and know of no others.
            local = table.to(indices.device)[indices.long()]
            weights = weights * (local >= 0)
            indices = local.clamp(min=0)
        return weights, indices.to(torch.int32)

    def gathered(self, indices: torch.Tensor) -> torch.Tensor:
        """The indices of all ranks that share the experts, as the hidden states are gathered."""
        metadata = get_forward_context().dp_metadata
        assert metadata is not None
        sizes = metadata.get_chunk_sizes_across_dp_rank()
        group = get_ep_group() if self.state.is_sequence_parallel else get_dp_group()
        (all_indices,) = group.all_gatherv([indices], 0, sizes)
        return all_indices


def fused_layer(
    facts: MoEFacts, experts: nn.Module, prefix: str, parts: dict[str, Part], model: Any
) -> HostedExperts:
    """vLLM's layer for these experts.

    Args:
        experts: the module it replaces, for the names of its call. prefix: its path in the host's model.
        model: the host's model.
    """
    known, top_k = facts.experts, 1 if facts.arguments is None else facts.top_k
    assert isinstance(known, ExpertsFacts) and top_k is not None
    activation = activation_of(known)
    assert not isinstance(activation, str)
    state = TransformersMoEState()
    routing = _Routing(state)
    parallel = model.parallel_config
    layer = FusedMoEFactory(
        num_experts=known.experts,
        top_k=top_k,
        hidden_size=known.hidden,
        intermediate_size=known.intermediate,
        renormalize=False,
        quant_config=model.quant_config,
        prefix=prefix,
        activation=activation.name,
        swiglu_limit=activation.limit,
        ckpt_names=("gate_proj", "down_proj", "up_proj" if activation.gated else None),
        enable_eplb=parallel.enable_eplb,
        num_redundant_experts=parallel.eplb_config.num_redundant_experts,
        has_bias=known.up_bias is not None or known.down_bias is not None,
        custom_routing_function=routing,
        runner_cls=HostedExperts,
        routed_experts_cls=TransformersRoutedExperts,
        runner_args={"moe_state": state},
    )
    assert isinstance(layer, HostedExperts)
    routing.routed = layer.routed_experts
    layer.facts, layer.parts, layer.interleave = facts, parts, activation.interleaved
    forward = inspect.unwrap(type(experts).forward)
    layer.names = tuple(inspect.signature(forward).parameters)[1:]
    return layer


def replace_experts(model: Any) -> list[Hosted]:
    """Put vLLM's layer in the place of every experts module it can stand for; how each class is served.

    Args:
        model: the host's model, its modules as transformers made them.
    """
    port = model.proved.port
    inside = f"{port.base}." if port.base else ""
    modules: dict[str, nn.Module] = dict(model.model.named_modules())
    found: dict[tuple[Any, str | None], Hosted] = {}
    blocks: list[nn.Module] = []
    layers: list[Any] = []
    for path, facts in read_blocks(port.trace).items():
        plan, below = port.where[path], path.removeprefix(inside)
        block = modules.get(below)
        if block is None or type(block) is not plan.trace.module_class:
            continue  # on another pipeline stage
        experts = block.get_submodule(facts.experts_path)
        below = f"{below}.{facts.experts_path}" if below else facts.experts_path
        parts = checkpoint_parts(model.model, f"{inside}{below}")
        reason = why_not(facts, model.vllm_config)
        if reason is None:
            layer = fused_layer(facts, experts, f"model.{below}", parts, model)
            owner, _, name = facts.experts_path.rpartition(".")
            setattr(block.get_submodule(owner), name, layer)
            blocks.append(block)
            layers.append(layer)
        else:
            _keep_experts(experts, parts)
        hosted = Hosted(path.rpartition(".")[2], type(block).__name__, facts, reason)
        found.setdefault((plan.trace.module_class, hosted.line()), hosted)
    _describe(model, blocks, layers)
    return list(found.values())


def _keep_experts(experts: nn.Module, parts: dict[str, Part]) -> None:
    """transformers' experts stay; they get a loader that knows how a checkpoint names their parts."""

    def load_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[str]:
        yield from load_plain(experts, parts, weights)

    object.__setattr__(experts, "load_weights", load_weights)


def _describe(model: Any, blocks: list[nn.Module], layers: list[Any]) -> None:
    """What vLLM's `MixtureOfExperts` interface asks of a model, read from its layers."""
    configs = [layer.moe_config for layer in layers]
    logical = max((int(c.num_logical_experts) for c in configs), default=0)
    physical = max((int(c.num_experts) for c in configs), default=0)
    model.mlp_layers, model.moe_layers = blocks, layers
    model.num_moe_layers = len(layers)
    model.num_expert_groups = 1
    model.num_logical_experts = model.num_routed_experts = logical
    model.num_physical_experts = physical
    model.num_local_physical_experts = physical // get_ep_group().world_size if layers else 0
    model.num_redundant_experts = physical - logical
    model.num_shared_experts = int(any(layer.facts.shared is not None for layer in layers))
