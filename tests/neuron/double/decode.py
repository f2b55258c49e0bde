"""NF.attention_decode: norm, QKV, QK-norm, RoPE, paged attention, cache write, O-projection.

The active keys take the place of the last S_tkg of the S_ctx context slots. A mask made for other
sizes is un-shuffled wrongly without an error, as the contract says.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double import paged
from tests.neuron.double.args import Args
from tests.neuron.double.decode_mask import row_positions
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build
from tests.neuron.double.state import state

REFUSED = ("out_in_sb", "skip_attention")
IGNORED = ("transposed_out", "K_cache_transposed", "is_h_transposed_by_4")


def sizes(a: Args) -> tuple[int, int, int, int, int]:
    """B, S, nq, nkv, d: none of the head counts is an argument."""
    batch, length, _ = a.X.shape
    d = a.V_cache.shape[-1]
    nkv = a.V_cache.shape[1] if a.V_cache.dim() == 4 else 1
    return batch, length, a.W_qkv.shape[1] // d - 2 * nkv, nkv, d


def _check_weights(a: Args) -> None:
    _batch, _length, nq, nkv, d = sizes(a)
    width = a.X.shape[2]
    a.shape("W_qkv", width, (nq + 2 * nkv) * d)
    a.need(nq > 0 and nq % nkv == 0, f"{nq} query heads for {nkv} KV heads")
    a.shape("bias_qkv", 1, a.W_qkv.shape[1], optional=True)
    a.shape("W_out", nq * d, -1, optional=True)
    if a.bias_out is not None:
        a.need(a.W_out is not None, "bias_out without W_out")
        a.shape("bias_out", 1, a.W_out.shape[1])
    a.shape("rmsnorm_X_gamma", 1, width, optional=True)
    for side in ("pre_rope", "post_rope"):
        names = [f"rmsnorm_QK_{side}_W_{which}" for which in "QK"]
        if a.values[f"rmsnorm_QK_{side}_enabled"]:
            a.together(*names)
        else:
            a.need(not a.given(names), f"{names} without rmsnorm_QK_{side}_enabled")
        for name in names:
            a.shape(name, 1, d, optional=True)
    a.same_dtype("X", "W_qkv", "bias_qkv", "W_out", "bias_out")
    if a.rmsnorm_X_enabled:
        a.need(a.rmsnorm_X_eps is not None, "rmsnorm_X_eps defaults to 1e-3: always pass it")
        a.need(a.rmsnorm_X_gamma is not None, "rmsnorm_X_enabled needs rmsnorm_X_gamma")
    else:
        a.need(a.rmsnorm_X_gamma is None, "rmsnorm_X_gamma without rmsnorm_X_enabled")


def _check_inputs(a: Args) -> None:
    batch, length, nq, _nkv, d = sizes(a)
    a.need(a.K_cache.dim() in (3, 4), "K_cache must be 3D or 4D")
    a.shape("K_cache", *a.V_cache.shape)
    a.dtype("K_cache", a.X.dtype)
    a.dtype("V_cache", a.X.dtype)
    if a.together("cos", "sin"):
        for name in ("cos", "sin"):
            a.shape(name, d // 2, batch, length)
    a.need(a.active_blocks_table is not None, "AssertionError: no block table")
    a.dtype("active_blocks_table", torch.int32)
    a.need(a.active_blocks_table.dim() == 2, "a 3D block table is for the kernel alone")
    a.shape("active_blocks_table", batch, -1)
    context = a.active_blocks_table.shape[1] * a.V_cache.shape[-2]
    a.need(a.pos_ids is not None or a.attention_mask is not None, "neither pos_ids nor a mask")
    if a.pos_ids is None:
        a.shape("attention_mask", context, batch, nq, length)
        a.dtype("attention_mask", torch.float32)
        a.need(a.swa_start_pos_ids is None, "swa_start_pos_ids without pos_ids")
    else:
        if a.attention_mask is not None:
            a.trap("a custom active mask is ignored when pos_ids are given")
        for name in ("pos_ids", "swa_start_pos_ids"):
            a.shape(name, batch, length, optional=True)
            a.dtype(name, torch.float32)
    a.shape("sink", nq, 1, optional=True)
    if a.update_cache:
        a.shape("kv_cache_update_idx", batch, length)
        a.dtype("kv_cache_update_idx", torch.uint32, torch.int32, torch.int64)
    else:
        a.need(a.kv_cache_update_idx is None, "kv_cache_update_idx without update_cache")


def check(a: Args) -> str:
    """Required tensors, shapes and dtypes; what the torch formula refuses; the kernel's limits."""
    for name in ("W_qkv", "K_cache", "V_cache"):
        a.need(a.values[name] is not None, f"{name} is required")
    a.shape("X", -1, -1, -1)
    _check_weights(a)
    _check_inputs(a)
    for name in ("quantization_type_qkv", "quantization_type_out"):
        a.need(a.values[name].name == "NONE", f"NotImplementedError: {name}")
    for name in REFUSED:
        a.need(not a.values[name], f"NotImplementedError: {name}")
    for name in IGNORED:
        if a.values[name]:
            a.trap(f"the torch formula ignores {name}")
    a.need(a.attention_dp == 1 and a.dcp_size == 1, "attention DP and DCP are not in the double")
    a.need(not a.given(["k_scale", "v_scale"]), "FP8 caches are not in the double")
    batch, length, nq, nkv, d = sizes(a)
    width = a.X.shape[2]
    rules = (
        (nkv > 1, f"{nkv} KV heads per rank with a 2D block table"),
        (width % 128 != 0, f"H = {width} is no multiple of 128"),
        (d % 2 != 0, f"d = {d} is odd"),
        (d > 128, f"d = {d} > 128"),
        (length > 8, f"S_tkg = {length} > 8"),
        (batch > 16, f"B = {batch} > 16 (advised)"),
        (batch * length * nq > 128, f"B * S_tkg * nq = {batch * length * nq} > 128"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def _heads(a: Args) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, values [B, S, n, d] of the active tokens, normed and rotated."""
    batch, length, nq, nkv, d = sizes(a)
    dtype = a.X.dtype
    x = F.up(a.X)
    if a.rmsnorm_X_enabled:
        x = F.rms(x, a.rmsnorm_X_eps, a.rmsnorm_X_gamma, a.X_hidden_dim_actual)
        x = F.rounded(x, dtype)
    y = x @ F.up(a.W_qkv)
    y = F.rounded(y if a.bias_qkv is None else y + F.up(a.bias_qkv), dtype)
    q, k, v = y.view(batch, length, -1, d).split([nq, nkv, nkv], 2)
    q, k = _qk_normed(a, "pre_rope", q, k)
    if a.cos is not None:
        cos, sin = (F.up(t).permute(1, 2, 0)[:, :, None] for t in (a.cos, a.sin))
        turn = F.rope_half if a.rope_contiguous_layout else F.rope_interleaved
        q, k = (F.rounded(turn(t, cos, sin), dtype) for t in (q, k))
    q, k = _qk_normed(a, "post_rope", q, k)
    return q, k, v


def _qk_normed(a: Args, side: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    if not a.values[f"rmsnorm_QK_{side}_enabled"]:
        return q, k
    eps = a.values[f"rmsnorm_QK_{side}_eps"]
    made = [
        F.rounded(F.rms(t, eps, a.values[f"rmsnorm_QK_{side}_W_{which}"]), a.X.dtype)
        for which, t in (("Q", q), ("K", k))
    ]
    return made[0], made[1]


def _seen(a: Args, context: int, block: int) -> Tensor:
    """Bool [B, nq, S, context] in the order of positions."""
    batch, length, nq, _, _ = sizes(a)
    at = torch.arange(context)
    if a.pos_ids is None:
        rows = row_positions(context, batch, nq, length, block)
        seen = torch.zeros(context, batch, nq, length, dtype=torch.bool)
        seen[rows] = a.attention_mask != 0
        return seen.permute(1, 2, 3, 0)
    prior = a.pos_ids[:, :1, None]
    a.need(bool((prior >= 0).all()), "pos_ids below 0: keep padding rows at 0 or more")
    a.need(bool((prior + length <= context).all()), "prior + S_tkg is above the context")
    inside = at < prior
    if a.swa_start_pos_ids is not None:
        inside = inside & (at >= a.swa_start_pos_ids[:, :, None])
    key = at - (context - length)
    active = (key >= 0) & (key <= torch.arange(length)[:, None])
    return torch.where(key >= 0, active[None], inside)[:, None].expand(batch, nq, length, context)


def _attend(a: Args, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, nq, S, d]: over the cached context, its last S slots replaced by the active K and V."""
    batch, length, _nq, _nkv, d = sizes(a)
    k_cache, v_cache = (c.unsqueeze(1) if c.dim() == 3 else c for c in (a.K_cache, a.V_cache))
    block = k_cache.shape[2]
    context = a.active_blocks_table.shape[1] * block
    seen = _seen(a, context, block)
    scale = a.softmax_scale if a.softmax_scale is not None else d**-0.5
    rows = []
    for i in range(batch):
        table = a.active_blocks_table[i]
        keys, values = (F.up(paged.gather(c, table)) for c in (k_cache, v_cache))
        keys[:, context - length :] = k[i].transpose(0, 1)
        values[:, context - length :] = v[i].transpose(0, 1)
        shown = seen[i]
        if state().semantics == "kernel":
            shown = shown & _active_blocks(table, block, context, length)
        rows.append(_one(a, q[i].transpose(0, 1), keys, values, shown, scale))
    return torch.stack(rows)


def _active_blocks(table: Tensor, block: int, context: int, length: int) -> Tensor:
    """The kernel leaves out blocks of -1; the active tokens always count."""
    live = (table >= 0).repeat_interleave(block)
    live[context - length :] = True
    return live


def _one(a: Args, q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """One request: q [nq, S, d] over keys, values [nkv, context, d]."""
    group = q.shape[0] // keys.shape[0]
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    dtype = a.X.dtype
    scores = F.rounded(F.rounded(q @ keys.transpose(1, 2), dtype) * scale, dtype)
    scores = torch.where(seen, scores, -math.inf)
    if a.sink is not None:
        scores = torch.cat([scores, F.up(a.sink)[:, :, None].expand(-1, q.shape[1], 1)], -1)
    weights = F.rounded(F.softmax(scores), dtype)[..., : keys.shape[1]]
    return F.rounded(weights @ values, dtype)


def compute(a: Args) -> list[Tensor]:
    """The output, after K and V were written; else also K_new and V_new."""
    batch, length, nq, nkv, d = sizes(a)
    dtype = a.X.dtype
    q, k, v = _heads(a)
    out = _attend(a, q, k, v)
    if a.update_cache:
        for cache, new in ((a.K_cache, k), (a.V_cache, v)):
            four = cache.unsqueeze(1) if cache.dim() == 3 else cache
            slots = a.kv_cache_update_idx.long()
            paged.write(a, four, slots, new.flatten(0, 1), four.shape[2], kernel_skips=True)
    if a.W_out is None:
        made = [out.transpose(2, 3).to(dtype)]
    else:
        y = out.transpose(1, 2).reshape(batch * length, nq * d) @ F.up(a.W_out)
        made = [(y if a.bias_out is None else y + F.up(a.bias_out)).to(dtype)]
    if not a.update_cache:
        made.append(k.permute(3, 0, 2, 1).reshape(d, batch * nkv, length).to(dtype))
        made.append(v.transpose(1, 2).to(dtype))
    return made


def shapes(a: Args) -> Made:
    """[B * S, H] or [B, nq, d, S]; with no cache write also K_new and V_new."""
    batch, length, nq, nkv, d = sizes(a)
    dtype = a.X.dtype
    out = (batch, nq, d, length) if a.W_out is None else (batch * length, a.W_out.shape[1])
    made: Made = [(out, dtype)]
    if not a.update_cache:
        made += [((d, batch * nkv, length), dtype), ((batch, nkv, length, d), dtype)]
    return made


def result(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    """The output alone after a cache write; else (output, K_new, V_new)."""
    return outputs[0] if args["update_cache"] else (outputs[0], outputs[1], outputs[2])


attention_decode = build(
    Function("attention_decode", check, shapes, compute, result, ("K_cache", "V_cache"))
)
