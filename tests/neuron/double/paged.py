"""Slots and blocks of a paged cache [blocks, heads, block size, dim], with the traps of -1."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.neuron.double.args import Args
from tests.neuron.double.state import state

SKIP = 0xFFFFFFFF


def check_cache(args: Args, k: str = "k_cache", v: str = "v_cache") -> None:
    """K and V caches are 4D of one shape; K and V head sizes are equal."""
    args.shape(k, -1, -1, -1, -1)
    args.shape(v, *args.values[k].shape)
    args.dtype(v, args.values[k].dtype)


def write(
    args: Args, cache: Tensor, slots: Tensor, rows: Tensor, block_size: int, *, kernel_skips: bool
) -> None:
    """Put rows [T, heads, dim] at slots [T]; a negative or too large slot is a documented trap.

    In the torch formula, floor division sends slot -1 to the last block's last offset. The decode
    kernel skips it (`kernel_skips`); the QKV kernel does not say what it does, so that is refused.
    """
    slots = slots.reshape(-1).long()
    capacity = cache.shape[0] * block_size
    bad = (slots < 0) | (slots >= capacity)
    if bool(bad.any()):
        if state().semantics == "kernel":
            args.need(kernel_skips, "a slot outside the cache: the kernel has no skip here")
            slots, rows = slots[~bad], rows[~bad]
        else:
            args.trap("a slot outside the cache is written to the last slot")
            slots = torch.where(bad, torch.full_like(slots, -1), slots)
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    cache[blocks, :, slots % block_size] = rows.to(cache.dtype)


def gather(cache: Tensor, table: Tensor) -> Tensor:
    """The blocks of one request, [heads, blocks * block size, dim]; -1 reads block 0."""
    blocks = cache[table.long().clamp(min=0)]
    return blocks.transpose(0, 1).flatten(1, 2)
