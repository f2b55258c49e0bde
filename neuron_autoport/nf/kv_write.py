"""The paged KV cache write of `qkv_proj(use_block_kv=True)`.

K and V caches are [num_blocks, num_kv_heads, block_size, d_head]; slot = block * block_size +
offset; a negative slot is not written. No host synchronisation and no data-dependent shape: it runs
in a compiled graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.qkv_heads import Heads


class KVTarget(NamedTuple):
    """The cache arguments of one call, named as in the contract."""

    k_cache: Tensor | None
    v_cache: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    fp8_max: float | None
    fp8_min: float | None
    kv_dtype: torch.dtype | None
    block_size: int | None
    slot_mapping: Tensor | None


def check_target(target: KVTarget, tokens: int, heads: Heads) -> None:
    """Refuse caches, slots and scales that do not fit.

    Raises:
        ValueError: an argument is missing or has a wrong shape or dtype.
        NotImplementedError: a cache that is not 4-D.
    """
    checks.required(
        "qkv_proj",
        "with use_block_kv=True",
        k_cache=target.k_cache,
        v_cache=target.v_cache,
        block_size=target.block_size,
        slot_mapping=target.slot_mapping,
    )
    for name, cache in (("k_cache", target.k_cache), ("v_cache", target.v_cache)):
        assert cache is not None
        if cache.dim() != 4:
            raise NotImplementedError(
                f"NF.qkv_proj: {name} must be [num_blocks, num_kv_heads, block_size, d_head], "
                f"got {tuple(cache.shape)}"
            )
        if tuple(cache.shape[1:]) != (heads.kv, target.block_size, heads.size):
            raise ValueError(
                f"NF.qkv_proj: {name} must be [num_blocks, {heads.kv}, {target.block_size}, "
                f"{heads.size}], got {tuple(cache.shape)}"
            )
        if target.kv_dtype is not None and cache.dtype != target.kv_dtype:
            raise ValueError(
                f"NF.qkv_proj: kv_dtype is {target.kv_dtype} but {name} is {cache.dtype}"
            )
    slots = target.slot_mapping
    if slots is not None and slots.numel() != tokens:
        raise ValueError(
            f"NF.qkv_proj: slot_mapping must have {tokens} elements, got {tuple(slots.shape)}"
        )
    _check_scales(target)


def _check_scales(target: KVTarget) -> None:
    scaling = {
        "k_scale": target.k_scale,
        "v_scale": target.v_scale,
        "fp8_max": target.fp8_max,
        "fp8_min": target.fp8_min,
    }
    if all(value is None for value in scaling.values()):
        return
    checks.required("qkv_proj", "together with the other FP8 cache arguments", **scaling)
    for name, scale in (("k_scale", target.k_scale), ("v_scale", target.v_scale)):
        if scale is not None and scale.numel() != 1:
            raise ValueError(f"NF.qkv_proj: {name} must be [1, 1], got {tuple(scale.shape)}")


def write_kv(k: Tensor, v: Tensor, heads: Heads, target: KVTarget) -> None:
    """Write k and v [B, S, kv heads * d] into the caches, in place. With scales: clamp(x / scale),
    in float32.

    The caches are state: no gradient flows into them.
    """
    assert target.slot_mapping is not None and target.block_size is not None
    slots = target.slot_mapping.flatten().long()
    if slots.shape[0] == 0:
        return
    for rows, cache, scale in (
        (k, target.k_cache, target.k_scale),
        (v, target.v_cache, target.v_scale),
    ):
        assert cache is not None
        rows = rows.detach()
        if scale is not None:
            rows = (rows.float() / scale.float().reshape(())).clamp(target.fp8_min, target.fp8_max)
        rows = rows.reshape(-1, heads.kv, heads.size).to(cache.dtype)
        if cache.dtype.itemsize == 1:  # FP8 is moved as bytes: few operators take it
            rows, cache = rows.view(torch.uint8), cache.view(torch.uint8)
        _store(cache.transpose(1, 2), rows, slots, target.block_size)


def _store(cache: Tensor, rows: Tensor, slots: Tensor, block_size: int) -> None:
    """rows [T, heads, d] to cache [blocks, block_size, heads, d] at slots [T], leaving out negative
    slots.

    A row that must not be written repeats the write of the first row that must. If there is none,
    all of them write slot 0's own content back. So the shape stays fixed and rows for one slot
    agree.
    """
    keep = slots >= 0
    first = keep.int().argmax(0, keepdim=True)
    spare_slot = slots[first].clamp(min=0)
    present = cache[spare_slot // block_size, spare_slot % block_size]
    spare_row = torch.where(keep[first][:, None, None], rows[first], present)
    slots = torch.where(keep, slots, spare_slot)
    rows = torch.where(keep[:, None, None], rows, spare_row)
    cache.index_put_((slots // block_size, slots % block_size), rows)
