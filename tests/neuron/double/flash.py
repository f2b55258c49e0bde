"""NF.flash_attention: attention over the tokens of one call, heads folded into the batch.

Rows that see nothing get a uniform average here (the mask is the dtype's lowest number, not -inf).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build


def _sizes(a: Args) -> tuple[int, int, int, int]:
    """B, Sq, D, and keys Sk of the call itself."""
    q = a.q.shape if a.tp_q else (a.q.shape[0], a.q.shape[2], a.q.shape[1])
    return q[0], q[1], q[2], a.v.shape[1]


def check(a: Args) -> str:
    """Shapes, dtypes and layouts; then the kernel's limits."""
    for name in ("q", "k", "v"):
        a.shape(name, -1, -1, -1)
    heads, length, d, keys = _sizes(a)
    kv = a.v.shape[0]
    a.shape("v", kv, keys, d)
    a.shape("k", kv, *((keys, d) if a.tp_k else (d, keys)))
    a.need(heads % kv == 0, f"{heads} query rows are no multiple of {kv} key rows")
    a.same_dtype("q", "k", "v")
    a.shape("sink", heads, 1, optional=True)
    if a.together("bound_min", "bound_max"):
        a.shape("bound_min", heads, length, 1)
        a.shape("bound_max", heads, length, 1)
    if a.together("k_prior", "v_prior"):
        prior = a.v_prior.shape[1]
        a.shape("v_prior", kv, prior, d)
        a.shape("k_prior", kv, *((prior, d) if a.tp_k else (d, prior)))
        if a.prior_used_len is None:
            a.trap("prior K and V without prior_used_len count as length 0")
        else:
            a.trap("prior_used_len is read on the host: breaks tracing")
            a.shape("prior_used_len", 1)
    if a.sliding_window and not a.causal_mask:
        a.trap("the window acts only with causal_mask")
    a.need(a.causal_mask or length == keys or not a.sliding_window, "a window needs causal_mask")
    a.need(not a.given(["cp_offset", "global_cp_deg"]), "context parallel is not in the double")
    rules = (
        (heads > 512, f"B = {heads} > 512"),
        (length > 131072, f"S = {length} > 131072"),
        (d > 128, f"D = {d} > 128"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def visible(a: Args, length: int, keys: int, prior: int, device: torch.device) -> Tensor:
    """Bool [Sq, keys]: what a query of this call sees."""
    q = torch.arange(length, device=device)[:, None] + prior
    k = torch.arange(keys, device=device)[None, :]
    seen = torch.ones(length, keys, dtype=torch.bool, device=device)
    if a.causal_mask:
        seen = k <= q
        if a.sliding_window:
            seen = seen & (k > q - a.sliding_window)
    return seen


def attend(a: Args, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Attention of q [B, Sq, D] over k, v [Bkv, Sk, D]; scores held in `dtype`."""
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scale = a.scale if a.scale is not None else q.shape[-1] ** -0.5
    scores = F.rounded(F.rounded(q @ k.transpose(1, 2), dtype) * scale, dtype)
    scores = torch.where(seen, scores, torch.finfo(dtype).min)
    if a.sink is not None:
        sink = F.up(a.sink)[:, :, None].expand(-1, q.shape[1], 1)
        scores = torch.cat([scores, sink], -1)
    weights = F.rounded(F.softmax(scores), dtype)
    return weights[..., : k.shape[1]] @ v


def compute(a: Args) -> list[Tensor]:
    """[B, Sq, D], or transposed."""
    dtype = a.q.dtype
    _heads, length, _d, keys = _sizes(a)
    q = F.up(a.q) if a.tp_q else F.up(a.q).transpose(1, 2)
    k = F.up(a.k) if a.tp_k else F.up(a.k).transpose(1, 2)
    v = F.up(a.v)
    prior = 0
    if a.k_prior is not None and a.prior_used_len is not None:
        prior = int(a.prior_used_len[0])
        before = F.up(a.k_prior) if a.tp_k else F.up(a.k_prior).transpose(1, 2)
        k = torch.cat([before[:, :prior], k], 1)
        v = torch.cat([F.up(a.v_prior)[:, :prior], v], 1)
    seen = visible(a, length, keys + prior, prior, q.device)
    if a.bound_min is not None:
        k_at = torch.arange(keys + prior)[None, None, :]
        seen = seen[None] & (k_at >= a.bound_min) & (k_at < a.bound_max)
    out = attend(a, q, k, v, seen, dtype)
    return [(out.transpose(1, 2) if a.tp_out else out).to(dtype)]


def shapes(a: Args) -> Made:
    """[B, Sq, D] or [B, D, Sq]."""
    heads, length, d, _ = _sizes(a)
    return [((heads, d, length) if a.tp_out else (heads, length, d), a.q.dtype)]


flash_attention = build(Function("flash_attention", check, shapes, compute))
