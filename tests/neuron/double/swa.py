"""NF.swa_fused_attention: a whole window-attention block of a prefill chunk over the paged cache.

fp32 all through. The active region starts at the next whole block after the prior, so the prior
must be a multiple of the block size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double import paged
from tests.neuron.double.args import Args
from tests.neuron.double.op import Function, Made, build


def _check(a: Args) -> str:
    a.shape("hidden_states", 1, -1, -1)
    _, length, width = a.hidden_states.shape
    columns = (a.num_q_heads + 2 * a.num_kv_heads) * a.d_head
    a.shape("qkv_weight", width, columns)
    a.shape("op_weight", a.num_q_heads * a.d_head, width)
    paged.check_cache(a)
    a.shape("k_cache", -1, a.num_kv_heads, a.block_size, a.d_head)
    a.shape("block_tables", 1, -1)
    a.dtype("block_tables", torch.int32)
    for name in ("cos_cache", "sin_cache"):
        a.shape(name, 1, length, a.d_head)
    a.shape("sink", 1, a.num_q_heads)
    a.shape("prior_tokens", 1, 1)
    a.dtype("prior_tokens", torch.int32)
    a.shape("qkv_bias", 1, columns)
    a.shape("op_bias", 1, width)
    a.need(not a.given(["k_scale", "v_scale"]), "FP8 caches are not in the double")
    a.need(a.sliding_window <= a.block_size, "the window must not be above the block size")
    a.need(length % 128 == 0, f"S = {length} is no multiple of 128")
    a.need(a.d_head <= 128, f"d_head = {a.d_head} > 128")
    a.trap("prior_tokens is read on the host: breaks tracing; only packed FP8 is validated")
    return "torch: only the packed FP8 route is a kernel"


def _compute(a: Args) -> list[Tensor]:
    length = a.hidden_states.shape[1]
    heads = F.up(a.hidden_states[0]) @ F.up(a.qkv_weight) + F.up(a.qkv_bias)
    q, k, v = heads.view(length, -1, a.d_head).split(
        [a.num_q_heads, a.num_kv_heads, a.num_kv_heads], 1
    )
    half = a.d_head // 2
    cos, sin = (F.up(t[0])[:, None, :half] for t in (a.cos_cache, a.sin_cache))
    q, k = F.rope_half(q, cos, sin) * a.scale, F.rope_half(k, cos, sin)
    prior = int(a.prior_tokens)
    a.need(prior % a.block_size == 0, f"prior_tokens {prior} is no multiple of the block size")
    at = torch.arange(prior, prior + length)
    slots = a.block_tables[0].long()[at // a.block_size] * a.block_size + at % a.block_size
    for cache, rows in ((a.k_cache, k), (a.v_cache, v)):
        paged.write(a, cache, slots, rows, a.block_size, kernel_skips=False)
    keys, values = (F.up(paged.gather(c, a.block_tables[0])) for c in (a.k_cache, a.v_cache))
    group = a.num_q_heads // a.num_kv_heads
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    at_k = torch.arange(keys.shape[1])
    seen = (at_k <= at[:, None]) & (at_k > at[:, None] - a.sliding_window)
    scores = torch.where(seen, q.transpose(0, 1) @ keys.transpose(1, 2), -math.inf)
    sink = F.up(a.sink).view(-1, 1, 1).expand(-1, length, 1)
    out = F.softmax(torch.cat([scores, sink], -1))[..., :-1] @ values
    y = out.transpose(0, 1).reshape(length, -1) @ F.up(a.op_weight) + F.up(a.op_bias)
    return [y[None].to(a.hidden_states.dtype)]


def _shapes(a: Args) -> Made:
    return [(tuple(a.hidden_states.shape), a.hidden_states.dtype)]


def _result(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    return outputs[0], args["k_cache"], args["v_cache"]


swa_fused_attention = build(
    Function("swa_fused_attention", _check, _shapes, _compute, _result, ("k_cache", "v_cache"))
)
