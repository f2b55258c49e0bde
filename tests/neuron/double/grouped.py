"""Functions over a process group: argmax, topk, batch_sharded_topk, all_to_all, group helpers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.neuron.double.args import Args
from tests.neuron.double.contract import FUNCTIONS
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build, front, resolve_group


def _gathered(tensor: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    if group is None:
        return [tensor]
    parts = [torch.empty_like(tensor.contiguous()) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts


def _check_argmax(a: Args) -> str:
    if a.process_group is None:
        raise ValueError("NF.argmax: process_group is required")
    a.need(a.dim in (-1, a.tensor.dim() - 1), "the kernel takes the last dim")
    wide = a.tensor.shape[-1] >= 128
    return KERNEL if wide else f"torch: the last dim is {a.tensor.shape[-1]} < 128"


def _argmax(a: Args) -> list[Tensor]:
    whole = torch.cat(_gathered(a.tensor, a.process_group), a.gather_dim)
    return [whole.argmax(a.dim, keepdim=a.keepdim)]


def _argmax_shapes(a: Args) -> Made:
    shape = tuple(a.tensor.shape[:-1])
    return [((*shape, 1) if a.keepdim else shape, torch.int64)]


def _check_topk(a: Args) -> str:
    a.need(a.tensor.dim() == 2 and a.dim in (-1, 1), "tensor must be [B, V], dim the last")
    return KERNEL


def _topk(a: Args) -> list[Tensor]:
    whole = torch.cat(_gathered(a.tensor, a.process_group), a.gather_dim)
    values, indices = whole.topk(a.k, a.dim)
    return [values, indices]


def _topk_shapes(a: Args) -> Made:
    rows = a.tensor.shape[0]
    return [((rows, a.k), a.tensor.dtype), ((rows, a.k), torch.int64)]


def _pair(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    return outputs[0], outputs[1]


def _check_all(a: Args) -> str:
    size = 1 if a.group is None else dist.get_world_size(a.group)
    a.need(a.tensor.shape[a.split_dim] % size == 0, f"dim {a.split_dim} over {size} ranks")
    return KERNEL


def _all_to_all(a: Args) -> list[Tensor]:
    parts = _gathered(a.tensor, a.group)
    at = 0 if a.group is None else dist.get_rank(a.group)
    mine = [part.chunk(len(parts), a.split_dim)[at] for part in parts]
    return [torch.cat(mine, a.concat_dim)]


def _all_shapes(a: Args) -> Made:
    size = 1 if a.group is None else dist.get_world_size(a.group)
    shape = list(a.tensor.shape)
    shape[a.split_dim] //= size
    shape[a.concat_dim] *= size
    return [(tuple(shape), a.tensor.dtype)]


def _slice_indices(args: dict[str, Any]) -> Tensor:
    """This rank's contiguous share of the items."""
    rank = dist.get_rank(resolve_group(args["process_group"]))
    each = args["num_items"] // args["world_size"]
    return torch.arange(rank * each, (rank + 1) * each, device=args["device"])


def _no_data_parallel(args: dict[str, Any]) -> Any:
    raise NotImplementedError("data-parallel groups are not in the double")


argmax = build(Function("argmax", _check_argmax, _argmax_shapes, _argmax))
topk = build(Function("topk", _check_topk, _topk_shapes, _topk, _pair))
all_to_all = build(Function("all_to_all", _check_all, _all_shapes, _all_to_all))
get_group_slice_indices = front(
    "get_group_slice_indices",
    FUNCTIONS["get_group_slice_indices"]["parameters"],
    _slice_indices,
)
batch_sharded_topk = front(
    "batch_sharded_topk", FUNCTIONS["batch_sharded_topk"]["parameters"], _no_data_parallel
)
create_row_col_groups = front(
    "create_row_col_groups", FUNCTIONS["create_row_col_groups"]["parameters"], _no_data_parallel
)
