"""NF.segmented_attention: one sequence's chunk over the paged cache, its own K and V included.

On the device this function raises, instead of falling back, when a limit is broken; the double
raises too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double import paged
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build

SEGMENTS = (512, 1024, 2048, 4096, 8192)


def _sizes(a: Args) -> tuple[int, int, int]:
    n, x, y = a.q.shape
    return (n, x, y) if a.tp_q else (n, y, x)


def check(a: Args) -> str:
    """Shapes and dtypes, and the limits under which the device raises."""
    a.shape("q", -1, -1, -1)
    heads, length, d = _sizes(a)
    a.need(not a.fp8_packed, "packed FP8 caches are not in the double")
    a.need(
        not a.given(["k_scale", "v_scale"]), "the caller folds the scales; they are ignored here"
    )
    paged.check_cache(a)
    kv = a.k_cache.shape[1]
    a.shape("k_cache", -1, kv, a.block_size, d)
    a.need(heads % kv == 0, f"{heads} query heads are no multiple of {kv} KV heads")
    a.same_dtype("q", "k_cache", "v_cache")
    a.shape("block_tables", 1, -1)
    a.integers("block_tables", "prior_tokens")
    a.shape("prior_tokens", heads, 1)
    a.shape("sink", heads, 1, optional=True)
    a.need(d <= 128, f"ValueError on the device: D = {d} > 128")
    a.need(a.kv_segment_size in SEGMENTS, f"ValueError: kv_segment_size must be in {SEGMENTS}")
    a.need(a.kv_segment_size % a.block_size == 0, "ValueError: kv_segment_size % block_size")
    a.need(
        not a.sliding_window or a.sliding_window % a.block_size == 0,
        f"ValueError on the device: window {a.sliding_window} % block_size {a.block_size}",
    )
    a.need(length == a.kv_segment_size, f"ValueError: Sq = {length} is not kv_segment_size")
    return KERNEL


def compute(a: Args) -> list[Tensor]:
    """Attention in float throughout; a row that sees nothing is zero."""
    heads, length, d = _sizes(a)
    q = F.up(a.q) if a.tp_q else F.up(a.q).transpose(1, 2)
    prior = int(a.prior_tokens[0, 0])
    a.need(prior % a.block_size == 0, f"prior_tokens {prior} is no multiple of the block size")
    a.need(bool((a.prior_tokens == prior).all()), "prior_tokens differ between heads")
    k, v = (
        F.up(paged.gather(cache, a.block_tables[0])[:, : prior + length])
        for cache in (a.k_cache, a.v_cache)
    )
    group = heads // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    at_k = torch.arange(k.shape[1])[None, :]
    at_q = torch.arange(length)[:, None] + prior
    seen = at_k <= at_q
    if a.sliding_window:
        seen = seen & (at_k > at_q - a.sliding_window)
    scale = a.scale if a.scale is not None else d**-0.5
    scores = torch.where(seen, (q @ k.transpose(1, 2)) * scale, -math.inf)
    if a.sink is not None:
        scores = torch.cat([scores, F.up(a.sink)[:, :, None].expand(-1, length, 1)], -1)
    out = F.softmax(scores)[..., : k.shape[1]] @ v
    return [(out.transpose(1, 2) if a.tp_out else out).to(a.q.dtype)]


def shapes(a: Args) -> Made:
    """[Nh, Sq, D] or [Nh, D, Sq]."""
    heads, length, d = _sizes(a)
    return [((heads, d, length) if a.tp_out else (heads, length, d), a.q.dtype)]


segmented_attention = build(Function("segmented_attention", check, shapes, compute))
