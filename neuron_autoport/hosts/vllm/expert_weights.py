"""Checkpoint tensors of experts into vLLM's fused layer, or into the parameters transformers has.

Which tensor is what follows from the facts of the graph (layout, order of gate and up) and from transformers' own
conversions (which checkpoint names are merged into which parameter); names alone say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.trace.experts import ExpertsFacts

GATE, UP, DOWN, GATE_BIAS, UP_BIAS, DOWN_BIAS = (
    "gate", "up", "down", "gate_bias", "up_bias", "down_bias",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A checkpoint tensor of one expert: rows of block `index` of `count` equal ones of a parameter."""

    parameter: str
    index: int
    count: int


def checkpoint_parts(model: nn.Module, path: str) -> dict[str, Part]:
    """What follows the expert's number in a checkpoint name -> what part it is.

    Args:
        model: transformers' model. path: of the experts module in it.

    Empty if the checkpoint has the parameters as the module has them.
    """
    parts: dict[str, Part] = {}
    for converter in get_model_conversion_mapping(model):
        if not isinstance(converter, WeightConverter) or len(converter.target_patterns) != 1:
            continue
        target = _plain(converter.target_patterns[0])
        owner, _, parameter = target.rpartition(".")
        if not f".{path}".endswith(f".{owner.strip('.')}"):
            continue
        steps = [type(o) for o in converter.operations]
        axes = [getattr(o, "dim", None) for o in converter.operations]
        sources = converter.source_patterns
        if (steps, axes) not in (
            ([MergeModulelist], [0]),
            ([MergeModulelist, Concatenate], [0, 1]),
        ):
            raise HostError(
                f"{path}.{parameter}: transformers converts it by {[s.__name__ for s in steps]}",
                path,
                "report it as a model whose experts are merged in a new way",
            )
        for index, source in enumerate(sources):
            parts[_plain(source).rpartition("*.")[2]] = Part(parameter, index, len(sources))
    return parts


def _plain(pattern: str) -> str:
    return pattern.replace("\\.", ".").strip("^$")


_OF_EXPERT = re.compile(r"^(\d+)\.(.+)$")


def load_plain(
    module: nn.Module, parts: dict[str, Part], weights: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[str]:
    """Fill transformers' own experts; yields the names of the parameters."""
    parameters = dict(module.named_parameters())
    for name, tensor in weights:
        found = _OF_EXPERT.match(name)
        part = parts.get(found[2]) if found else None
        if found and part is not None:
            rows = parameters[part.parameter].data[int(found[1])]
            rows.chunk(part.count, dim=0)[part.index].copy_(tensor)
            yield part.parameter
        elif name in parameters:
            parameters[name].data.copy_(tensor)
            yield name
        else:
            raise _not_known(name)


def _not_known(name: str) -> HostError:
    return HostError(
        f"the checkpoint has `{name}` for the experts, which is no parameter of theirs", name,
        "check that the checkpoint belongs to this architecture",
    )  # fmt: skip


def load_fused(
    routed: Any,
    facts: ExpertsFacts,
    interleave: bool,
    parts: dict[str, Part],
    weights: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[str]:
    """Fill vLLM's fused weights, this rank's experts and columns only; yields their names.

    Args:
        routed: vLLM's `RoutedExperts`. interleave: its activation wants gate and up in turn.
    """
    place = _Place(routed, interleave)
    for name, tensor in weights:
        found = _OF_EXPERT.match(name)
        part = parts.get(found[2]) if found else None
        if found and part is not None:
            pieces = _pieces(facts, part.parameter, tensor, part)
            yield from (place(int(found[1]), kind, piece) for kind, piece in pieces)
        elif name in facts.parameters:
            for expert, one in enumerate(tensor.unbind()):
                pieces = _pieces(facts, name, one, Part(name, 0, 1))
                yield from (place(expert, kind, piece) for kind, piece in pieces)
        else:
            raise _not_known(name)


def _pieces(
    facts: ExpertsFacts, parameter: str, tensor: torch.Tensor, part: Part
) -> Iterator[tuple[str, torch.Tensor]]:
    """One expert's tensor as gate, up and down matrices [out, in] and biases [out]."""
    if facts.layout == "in_out" and tensor.dim() == 2:
        tensor = tensor.t()
    if parameter in (facts.down, facts.down_bias):
        yield (DOWN if parameter == facts.down else DOWN_BIAS), tensor
        return
    gate, up = (GATE, UP) if parameter == facts.up else (GATE_BIAS, UP_BIAS)
    order = facts.gate.order
    if order is None:  # one product, which vLLM keeps in the gate's place
        yield gate, tensor
        return
    halves: tuple[torch.Tensor, ...]
    if order == "interleaved":
        halves = (tensor[0::2], tensor[1::2])
    elif part.count == 2:
        first = part.index == 0
        yield (gate if first == (order == "gate_up") else up), tensor
        return
    else:
        halves = tensor.chunk(2, dim=0)
    if order == "up_gate":
        halves = halves[::-1]
    yield from zip((gate, up), halves, strict=True)


class _Place:
    """Puts a piece of one expert where this rank keeps it."""

    def __init__(self, routed: Any, interleave: bool) -> None:
        config = routed.moe_config
        self.routed, self.interleave = routed, interleave
        self.inner = int(config.intermediate_size_per_partition_unpadded)
        self.start = int(config.tp_rank) * self.inner
        self.first_rank = int(config.tp_rank) == 0
        self.copies = _copies(config)

    def __call__(self, expert: int, kind: str, piece: torch.Tensor) -> str:
        name = {GATE: "w13_weight", UP: "w13_weight", DOWN: "w2_weight",
                GATE_BIAS: "w13_bias", UP_BIAS: "w13_bias", DOWN_BIAS: "w2_bias"}[kind]  # fmt: skip
        data = getattr(self.routed, name).data
        for copy in self.copies.get(expert, (expert,)):
            local = self.routed._map_global_expert_id_to_local_expert_id(copy)
            if local != -1:
                self.put(data[local], kind, piece)
        return f"routed_experts.{name}"

    def put(self, target: torch.Tensor, kind: str, piece: torch.Tensor) -> None:
        if kind == DOWN_BIAS:  # the ranks' outputs are summed
            target[: len(piece)].copy_(piece) if self.first_rank else target.zero_()
            return
        if kind == DOWN:
            columns = piece.narrow(1, self.start, self.inner)
            target[: columns.shape[0], : self.inner].copy_(columns)
            return
        rows = piece.narrow(0, self.start, self.inner)
        second = kind in (UP, UP_BIAS)
        if self.interleave:
            target = target[int(second) : 2 * self.inner : 2]
        else:
            start = target.shape[0] // 2 if second else 0
            target = target[start:][: self.inner]
        if rows.dim() == 2:
            target = target[:, : rows.shape[1]]
        target.copy_(rows)


def _copies(config: Any) -> dict[int, tuple[int, ...]]:
    """Logical expert -> the physical ones that hold it, where vLLM keeps some twice."""
    logical = int(config.num_logical_experts)
    redundant = int(config.num_experts) - logical
    if redundant <= 0:
        return {}
    from vllm.distributed.eplb.eplb_state import EplbState

    found: dict[int, tuple[int, ...]] = {}
    mapping = EplbState.build_initial_global_physical_to_logical_map(logical, redundant)
    for physical, expert in enumerate(mapping):
        found[int(expert)] = (*found.get(int(expert), ()), physical)
    return found
