"""Collectives over gloo, as operators a full graph can hold, and the group coordinator.

As on Neuron, `all_reduce` works in place and returns its input. Every collective that runs is
counted in the call log, also in a group of one rank: the graph on the device has it there too.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tests.neuron.double.op import NAMESPACE, named_group, resolve_group
from tests.neuron.double.state import state


def _note(kind: str) -> None:
    state().log.collectives[kind] += 1


@torch.library.custom_op(f"{NAMESPACE}::all_reduce_", mutates_args=("x",))
def all_reduce_(x: Tensor, group: str) -> None:
    """Sum over the ranks, in place."""
    _note("all_reduce")
    if x.is_contiguous():
        dist.all_reduce(x, group=resolve_group(group))
        return
    packed = x.contiguous()
    dist.all_reduce(packed, group=resolve_group(group))
    x.copy_(packed)


@all_reduce_.register_fake
def _(x: Tensor, group: str) -> None:
    return None


@torch.library.custom_op(f"{NAMESPACE}::all_gather", mutates_args=())
def all_gather(x: Tensor, dim: int, size: int, group: str) -> Tensor:
    """The ranks' tensors, concatenated on `dim`."""
    _note("all_gather")
    parts = [torch.empty_like(x.contiguous()) for _ in range(size)]
    dist.all_gather(parts, x.contiguous(), group=resolve_group(group))
    return torch.cat(parts, dim)


@all_gather.register_fake
def _(x: Tensor, dim: int, size: int, group: str) -> Tensor:
    shape = list(x.shape)
    shape[dim] *= size
    return x.new_empty(shape)


@torch.library.custom_op(f"{NAMESPACE}::reduce_scatter", mutates_args=())
def reduce_scatter(x: Tensor, dim: int, size: int, group: str) -> Tensor:
    """The sum over the ranks; this rank's share of `dim`."""
    _note("reduce_scatter")
    total = x.clone().contiguous()
    dist.all_reduce(total, group=resolve_group(group))
    return total.chunk(size, dim)[dist.get_rank(resolve_group(group))].clone()


@reduce_scatter.register_fake
def _(x: Tensor, dim: int, size: int, group: str) -> Tensor:
    if x.shape[dim] % size:
        raise ValueError(f"reduce_scatter: {x.shape[dim]} on dim {dim} for {size} ranks")
    shape = list(x.shape)
    shape[dim] //= size
    return x.new_empty(shape)


class Group:
    """What `get_tp_group()` gives: sizes, the process group, and the three collectives."""

    def __init__(self, ranks: list[int], process_group: dist.ProcessGroup) -> None:
        self.ranks = ranks
        self.world_size = len(ranks)
        self.rank = dist.get_rank()
        self.rank_in_group = ranks.index(self.rank)
        self.local_rank = self.rank
        self.device_group = process_group
        self.cpu_group = process_group
        self.unique_name = f"double:{process_group.group_name}"

    @property
    def is_first_rank(self) -> bool:
        """Whether this is the group's first rank."""
        return self.rank_in_group == 0

    def all_reduce(self, input_: Tensor) -> Tensor:
        """Sum over the ranks, in place; the input itself is returned."""
        all_reduce_(input_, named_group(self.device_group))
        return input_

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        """The ranks' tensors, concatenated on `dim`."""
        return all_gather(input_, dim, self.world_size, named_group(self.device_group))

    def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
        """The sum over the ranks, this rank's share of `dim`."""
        return reduce_scatter(input_, dim, self.world_size, named_group(self.device_group))

    def barrier(self) -> None:
        """Wait for the others."""
        dist.barrier(group=self.cpu_group)
