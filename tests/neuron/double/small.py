"""Small functions: embedding, cumsum, argsort, merge_prompt_embeds, the expert-parallel helpers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.contract import FUNCTIONS
from tests.neuron.double.op import Function, Made, build, front

TORCH = "torch: never a kernel"


def _check_embedding(a: Args) -> str:
    a.need(a.input.dim() == 1, "ValueError: input must be [T]")
    a.integers("input")
    a.shape("weight", -1, -1)
    return TORCH


def _embedding(a: Args) -> list[Tensor]:
    inside = bool(((a.input >= 0) & (a.input < a.weight.shape[0])).all())
    a.need(inside, "an id is outside the table: there is no range check on the device")
    return [a.weight[a.input.long()]]


def _embedding_shapes(a: Args) -> Made:
    return [((a.input.shape[0], a.weight.shape[1]), a.weight.dtype)]


def _check_cumsum(a: Args) -> str:
    a.need(a.tensor.dim() == 2 and a.dim in (-1, 1), "ValueError: 2D and the last dim only")
    return "kernel"


def _cumsum(a: Args) -> list[Tensor]:
    size = a.tensor.shape[1]
    ones = torch.ones(size, size, dtype=F.up(a.tensor).dtype).triu()
    return [(F.up(a.tensor) @ ones).to(a.tensor.dtype)]


def _like(name: str, dtype: torch.dtype | None = None) -> Any:
    def shapes(a: Args) -> Made:
        return [(tuple(a.values[name].shape), dtype or a.values[name].dtype)]

    return shapes


def _check_argsort(a: Args) -> str:
    flat = a.data.dim() == 1 or (a.data.dim() == 2 and a.data.shape[0] == 1)
    a.need(flat, "data must be [N] or [1, N]")
    return "kernel"


def _argsort(a: Args) -> list[Tensor]:
    return [a.data.argsort(-1, descending=a.descending).int()]


def _check_merge(a: Args) -> str:
    a.shape("hidden_states", -1, -1)
    a.shape("inputs_embeds", *a.hidden_states.shape, optional=True)
    a.shape("is_token_ids", a.hidden_states.shape[0], optional=True)
    a.dtype("is_token_ids", torch.bool)
    return TORCH


def _merge(a: Args) -> list[Tensor]:
    if a.inputs_embeds is None or a.is_token_ids is None:
        return [a.hidden_states.clone()]
    return [torch.where(a.is_token_ids[:, None], a.hidden_states, a.inputs_embeds)]


def _check_local(a: Args) -> str:
    if a.expert_affinities.dim() != 2 or a.local_expert_indices.numel() == 0:
        raise ValueError("expert_affinities must be [T, E], local_expert_indices not empty")
    a.integers("local_expert_indices")
    return TORCH


def _local(a: Args) -> list[Tensor]:
    return [a.expert_affinities[:, a.local_expert_indices]]


def _local_shapes(a: Args) -> Made:
    count = a.local_expert_indices.numel()
    return [((a.expert_affinities.shape[0], count), a.expert_affinities.dtype)]


def _indices(a: dict[str, Any]) -> Tensor:
    """arange(E / ep) + ep_rank * E / ep, int64."""
    each = a["total_num_experts"] // a["ep_degree"]
    return torch.arange(each, device=a["device"]) + a["ep_rank"] * each


def _validate(a: dict[str, Any]) -> None:
    for name in ("num_experts", "world_size"):
        if a[name] % a["ep_degree"]:
            raise ValueError(f"ep_degree {a['ep_degree']} does not divide {name} {a[name]}")


def _plain(name: str, call: Any) -> Any:
    return front(name, FUNCTIONS[name]["parameters"], call)


embedding = build(Function("embedding", _check_embedding, _embedding_shapes, _embedding))
cumsum = build(Function("cumsum", _check_cumsum, _like("tensor"), _cumsum))
argsort_unstable = build(
    Function("argsort_unstable", _check_argsort, _like("data", torch.int32), _argsort)
)
merge_prompt_embeds = build(
    Function("merge_prompt_embeds", _check_merge, _like("hidden_states"), _merge)
)
get_local_expert_affinities = build(
    Function("get_local_expert_affinities", _check_local, _local_shapes, _local)
)
calculate_local_expert_indices = _plain("calculate_local_expert_indices", _indices)
validate_expert_parallelism_config = _plain("validate_expert_parallelism_config", _validate)
