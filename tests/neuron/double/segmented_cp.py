"""NF.segmented_attention_cp: segmented attention with the cache's tokens spread over ranks.

Slot s of rank R holds global position (s // I) * (W * I) + R * I + s % I, for an interleave of I
over W ranks. Each rank has its own query heads and gets their output.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double import paged
from tests.neuron.double.args import Args
from tests.neuron.double.contract import FUNCTIONS
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build, front
from tests.neuron.double.segmented import SEGMENTS


def _sizes(a: Args) -> tuple[int, int, int]:
    n, x, y = a.q.shape
    return (n, x, y) if a.tp_q else (n, y, x)


def _check(a: Args) -> str:
    a.shape("q", -1, -1, -1)
    heads, length, d = _sizes(a)
    ranks = a.cp_world_size
    a.need(a.cp_group is not None and dist.get_world_size(a.cp_group) == ranks, "cp_world_size")
    paged.check_cache(a)
    kv = a.k_cache.shape[1]
    a.shape("k_cache", -1, kv, a.block_size, d)
    a.need(length % ranks == 0, f"S = {length} over {ranks} ranks")
    for name in ("k_local", "v_local"):
        a.shape(name, kv, length // ranks, d)
    a.same_dtype("q", "k_local", "v_local", "k_cache", "v_cache")
    a.shape("block_tables", 1, -1)
    a.shape("cp_rank", 1, 1)
    a.integers("block_tables", "prior_tokens", "cp_rank")
    a.need(heads * ranks % kv == 0, f"{heads * ranks} query heads for {kv} KV heads")
    a.need(d <= 128, f"ValueError: D = {d} > 128")
    rules = (
        (not any(length % size == 0 for size in SEGMENTS), f"no segment size divides S = {length}"),
        (a.cp_kv_cache_interleave_size != a.block_size, "interleave and block size differ"),
        (heads * ranks % 2 != 0, f"{heads * ranks} heads in all is odd"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def _spread(a: Args, own: Tensor) -> tuple[Tensor, Tensor]:
    """All ranks' [kv, n, d], one after the other, and the global position of each."""
    ranks, step = a.cp_world_size, a.cp_kv_cache_interleave_size
    parts = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(parts, own.contiguous(), group=a.cp_group)
    slot = torch.arange(own.shape[1])
    base = slot // step * (ranks * step) + slot % step
    return torch.cat(parts, 1), torch.cat([base + rank * step for rank in range(ranks)])


def _compute(a: Args) -> list[Tensor]:
    heads, length, d = _sizes(a)
    rank, ranks = int(a.cp_rank), a.cp_world_size
    prior = int(a.prior_tokens.flatten()[0])
    sides = []
    for cache, own in ((a.k_cache, a.k_local), (a.v_cache, a.v_local)):
        old, old_at = _spread(a, F.up(paged.gather(cache, a.block_tables[0])[:, :prior]))
        new, new_at = _spread(a, F.up(own))
        sides.append(torch.cat([old, new], 1))
    at_k = torch.cat([old_at, new_at + prior * ranks])
    at_q = torch.arange(length)[:, None] + prior * ranks
    kv = a.k_cache.shape[1]
    owner = (torch.arange(heads) + rank * heads) // (heads * ranks // kv)
    q = F.up(a.q) if a.tp_q else F.up(a.q).transpose(1, 2)
    scale = a.scale if a.scale is not None else d**-0.5
    scores = (q @ sides[0][owner].transpose(1, 2)) * scale
    out = F.softmax(torch.where(at_k[None] <= at_q, scores, -math.inf)) @ sides[1][owner]
    return [(out.transpose(1, 2) if a.tp_out else out).to(a.q.dtype)]


def _shapes(a: Args) -> Made:
    heads, length, d = _sizes(a)
    return [((heads, d, length) if a.tp_out else (heads, length, d), a.q.dtype)]


def _unchanged(args: dict[str, Any]) -> Any:
    """Without a device the mask keeps its layout."""
    return args["attention_mask"]


segmented_attention_cp = build(Function("segmented_attention_cp", _check, _shapes, _compute))
maybe_transpose_mask_for_qk_swap = front(
    "maybe_transpose_mask_for_qk_swap",
    FUNCTIONS["maybe_transpose_mask_for_qk_swap"]["parameters"],
    _unchanged,
)
