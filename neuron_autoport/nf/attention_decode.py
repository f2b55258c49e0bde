"""NF.attention_decode: a whole attention block for a few new tokens of each request.

Norm, QKV, QK-norm, RoPE, attention over the paged cache and the new tokens, cache write, output
projection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.decode_mask import row_positions
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.enums import QuantizationType
from neuron_autoport.nf.segmented_attention import gather_pages

NAME = "attention_decode"


class _Sizes(NamedTuple):
    """Batch, new tokens, head counts, head size, block size, cached positions of the table."""

    batch: int
    active: int
    heads: int
    kv_heads: int
    width: int
    block: int
    context: int


def _four(cache: Tensor) -> Tensor:
    """[blocks, kv heads, block size, D]; a 3-D cache has one head."""
    return cache[:, None] if cache.dim() == 3 else cache


def _sizes(x: Tensor, w_qkv: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor) -> _Sizes:
    if x.dim() != 3:
        raise ValueError(f"NF.{NAME}: X must be [B, S, H], got {tuple(x.shape)}")
    if k_cache.dim() not in (3, 4) or k_cache.shape != v_cache.shape:
        raise ValueError(f"NF.{NAME}: caches are {tuple(k_cache.shape)}, {tuple(v_cache.shape)}")
    if table.dtype != torch.int32 or table.dim() != 2 or table.shape[0] != x.shape[0]:
        raise ValueError(
            f"NF.{NAME}: active_blocks_table must be int32 [{x.shape[0]}, blocks], got {table.dtype} "
            f"{tuple(table.shape)}"
        )
    if w_qkv.dim() != 2 or w_qkv.shape[0] != x.shape[-1]:
        raise ValueError(f"NF.{NAME}: W_qkv must be [{x.shape[-1]}, F], got {tuple(w_qkv.shape)}")
    _, kv_heads, block, width = _four(v_cache).shape
    heads = w_qkv.shape[1] // width - 2 * kv_heads
    if heads < 1 or (heads + 2 * kv_heads) * width != w_qkv.shape[1] or heads % kv_heads:
        raise ValueError(
            f"NF.{NAME}: W_qkv has {w_qkv.shape[1]} columns for {kv_heads} kv heads of {width}"
        )
    return _Sizes(x.shape[0], x.shape[1], heads, kv_heads, width, block, table.shape[1] * block)


def _rms(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """RMS norm over the last axis in float32, result in the dtype of x."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide if gamma is None else wide * gamma.float()).to(x.dtype)


def _rope(x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
    """x [B, S, N, d] rotated; cos, sin [d/2, B, S]. Pairs (i, i + d/2), or (2i, 2i + 1)."""
    c, s = (t.permute(1, 2, 0)[:, :, None].to(x.dtype) for t in (cos, sin))
    first, second = x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])
    turned = (first * c - second * s, second * c + first * s)
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)


def _visible(
    z: _Sizes, mask: Tensor | None, pos: Tensor | None, start: Tensor | None, device: torch.device
) -> Tensor:
    """bool [B, N, S, context] in the order of the cache."""
    if pos is None:
        checks.required(NAME, "without pos_ids", attention_mask=mask)
        assert mask is not None
        want = (z.context, z.batch, z.heads, z.active)
        if tuple(mask.shape) != want:
            raise ValueError(f"NF.{NAME}: attention_mask must be {want}, got {tuple(mask.shape)}")
        rows = row_positions(z.block, z.batch, z.heads, z.active, z.context, device)
        ordered = torch.zeros_like(mask).index_copy(0, rows, mask)
        return (ordered != 0).permute(1, 2, 3, 0)
    checks.refuse(NAME, "with pos_ids the new tokens see each other causally", attention_mask=mask)
    at = torch.arange(z.context, device=device)
    seen = at < pos[:, :1, None]
    if start is not None:
        seen = seen & (at >= start[:, :, None])
    new = at - (z.context - z.active)
    own = torch.arange(z.active, device=device)[None, :, None]
    seen = torch.where(new >= 0, new <= own, seen.expand(z.batch, z.active, z.context))
    return seen[:, None].expand(z.batch, z.heads, z.active, z.context)


def _attend(
    z: _Sizes, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sink: Tensor | None, scale: float
) -> Tensor:
    """q [B, N, S, d], k and v [B, Nkv, context, d] -> [B, N, S, d]; softmax in float32."""
    group = z.heads // z.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (torch.matmul(q, k.transpose(2, 3)) * scale).float().masked_fill(~seen, float("-inf"))
    if sink is None:
        weights = scores.softmax(-1)
    else:
        if tuple(sink.shape) != (z.heads, 1):
            raise ValueError(f"NF.{NAME}: sink must be [{z.heads}, 1], got {tuple(sink.shape)}")
        column = sink.float()[None, :, :, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    return torch.matmul(weights.to(v.dtype), v)


def _write(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    """rows [B, N, S, d] to slots [B, S]; a slot outside the cache goes to its very last place."""
    count, heads, size, width = cache.shape
    slots = slots.flatten().long()
    slots = torch.where((slots >= 0) & (slots < count * size), slots, count * size - 1)
    head = torch.arange(heads, device=cache.device)
    values = rows.transpose(1, 2).reshape(-1, heads, width).to(cache.dtype)
    cache.index_put_(((slots // size)[:, None], head[None], (slots % size)[:, None]), values)


@nf_function(weights=())
def attention_decode(
    X: Tensor,
    X_hidden_dim_actual: int | None = None,
    rmsnorm_X_enabled: bool = False,
    rmsnorm_X_eps: float | None = None,
    rmsnorm_X_gamma: Tensor | None = None,
    W_qkv: Tensor | None = None,
    bias_qkv: Tensor | None = None,
    quantization_type_qkv: QuantizationType = QuantizationType.NONE,
    weight_dequant_scale_qkv: Tensor | None = None,
    input_dequant_scale_qkv: Tensor | None = None,
    rmsnorm_QK_pre_rope_enabled: bool = False,
    rmsnorm_QK_pre_rope_eps: float = 1e-6,
    rmsnorm_QK_pre_rope_W_Q: Tensor | None = None,
    rmsnorm_QK_pre_rope_W_K: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    rope_contiguous_layout: bool = True,
    rmsnorm_QK_post_rope_enabled: bool = False,
    rmsnorm_QK_post_rope_eps: float = 1e-6,
    rmsnorm_QK_post_rope_W_Q: Tensor | None = None,
    rmsnorm_QK_post_rope_W_K: Tensor | None = None,
    K_cache_transposed: bool = False,
    active_blocks_table: Tensor | None = None,
    K_cache: Tensor | None = None,
    V_cache: Tensor | None = None,
    attention_mask: Tensor | None = None,
    sink: Tensor | None = None,
    softmax_scale: float | None = None,
    pos_ids: Tensor | None = None,
    swa_start_pos_ids: Tensor | None = None,
    update_cache: bool = False,
    kv_cache_update_idx: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    fp8_packed: bool = False,
    W_out: Tensor | None = None,
    bias_out: Tensor | None = None,
    quantization_type_out: QuantizationType = QuantizationType.NONE,
    weight_dequant_scale_out: Tensor | None = None,
    input_dequant_scale_out: Tensor | None = None,
    transposed_out: bool = False,
    out_in_sb: bool = False,
    skip_attention: bool = False,
    is_h_transposed_by_4: bool = False,
    sbm_lower_bound: int | None = None,
    sbm_upper_bound: int | None = None,
    sbm_use_auto_alloc: bool = True,
    sbm_default_stack_alloc: bool = True,
    attention_dp: int = 1,
    attention_dp_group: Any = None,
    attention_dp_rank: int = 0,
    kv_needs_a2a: bool = False,
    dcp_size: int = 1,
    dcp_group: Any = None,
    dcp_collective_mode: str = "auto",
    dcp_active_owner: Tensor | None = None,
    fp8_fused_mask_allowed: bool = False,
) -> Any:
    """An attention block on the paged cache. Source: the plugin's contract, `attention_decode`.

    norm(X) @ W_qkv + bias -> heads -> QK-norm (float32) -> RoPE -> QK-norm -> attention over the table's
    positions, the last S of which stand for the new tokens -> cache write -> @ W_out + bias.

    Args:
        X: [B, S, H]. W_qkv: [H, F], columns [Q | K | V]; bias_qkv: [1, F].
        rmsnorm_*_W_Q, W_K: [1, d]. cos, sin: [d/2, B, S], None for no RoPE.
        active_blocks_table: int32 [B, blocks], below zero: unused. K_cache, V_cache: [blocks, kv heads,
            block size, d], or 3-D for one head.
        attention_mask: of `gen_attention_decode_mask`; or pos_ids (and swa_start_pos_ids) [B, S].
        sink: [N, 1]. kv_cache_update_idx: [B, S] slots, with `update_cache`.
        W_out: [N * d, H]; bias_out: [1, H].

    Returns:
        [B * S, H], or [B, N, d, S] without W_out; without `update_cache` the triple (that, K_new
        [d, B * Nkv, S], V_new [B, Nkv, S, d]).

    Raises:
        ValueError: a wrong or missing argument.
        NotImplementedError: quantization, FP8 caches, data or context parallel, kernel-only layouts.
    """
    checks.refuse(
        NAME,
        "it computes unquantized, on one rank, in plain layouts",
        X_hidden_dim_actual=X_hidden_dim_actual,
        quantization_type_qkv=quantization_type_qkv != QuantizationType.NONE,
        weight_dequant_scale_qkv=weight_dequant_scale_qkv,
        input_dequant_scale_qkv=input_dequant_scale_qkv,
        K_cache_transposed=K_cache_transposed,
        k_scale=k_scale,
        v_scale=v_scale,
        fp8_packed=fp8_packed,
        quantization_type_out=quantization_type_out != QuantizationType.NONE,
        weight_dequant_scale_out=weight_dequant_scale_out,
        input_dequant_scale_out=input_dequant_scale_out,
        transposed_out=transposed_out,
        out_in_sb=out_in_sb,
        skip_attention=skip_attention,
        is_h_transposed_by_4=is_h_transposed_by_4,
        attention_dp=attention_dp != 1,
        dcp_size=dcp_size != 1,
    )
    checks.required(
        NAME,
        "",
        W_qkv=W_qkv,
        K_cache=K_cache,
        V_cache=V_cache,
        active_blocks_table=active_blocks_table,
    )
    assert W_qkv is not None and K_cache is not None and V_cache is not None
    assert active_blocks_table is not None
    z = _sizes(X, W_qkv, K_cache, V_cache, active_blocks_table)
    x = X
    if rmsnorm_X_enabled:
        x = _rms(X, rmsnorm_X_gamma, 1e-3 if rmsnorm_X_eps is None else rmsnorm_X_eps)
    checks.row(NAME, "bias_qkv", bias_qkv, W_qkv.shape[1])
    y = x @ W_qkv if bias_qkv is None else x @ W_qkv + bias_qkv
    q, k, v = y.unflatten(-1, (-1, z.width)).split([z.heads, z.kv_heads, z.kv_heads], 2)
    if rmsnorm_QK_pre_rope_enabled:
        q = _rms(q, rmsnorm_QK_pre_rope_W_Q, rmsnorm_QK_pre_rope_eps)
        k = _rms(k, rmsnorm_QK_pre_rope_W_K, rmsnorm_QK_pre_rope_eps)
    if cos is not None:
        checks.required(NAME, "with cos", sin=sin)
        assert sin is not None
        if tuple(cos.shape) != (z.width // 2, z.batch, z.active):
            want = f"[{z.width // 2}, {z.batch}, {z.active}]"
            raise ValueError(f"NF.{NAME}: cos must be {want}, got {tuple(cos.shape)}")
        q, k = (_rope(t, cos, sin, rope_contiguous_layout) for t in (q, k))
    if rmsnorm_QK_post_rope_enabled:
        q = _rms(q, rmsnorm_QK_post_rope_W_Q, rmsnorm_QK_post_rope_eps)
        k = _rms(k, rmsnorm_QK_post_rope_W_K, rmsnorm_QK_post_rope_eps)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    old = z.context - z.active
    keys, values = (
        torch.cat([gather_pages(_four(cache), active_blocks_table)[:, :, :old].to(q.dtype), new], 2)
        for cache, new in ((K_cache, k), (V_cache, v))
    )
    seen = _visible(z, attention_mask, pos_ids, swa_start_pos_ids, X.device)
    scale = z.width**-0.5 if softmax_scale is None else softmax_scale
    out = _attend(z, q, keys, values, seen, sink, scale)
    if update_cache:
        checks.required(NAME, "with update_cache", kv_cache_update_idx=kv_cache_update_idx)
        assert kv_cache_update_idx is not None
        _write(_four(K_cache), k, kv_cache_update_idx)
        _write(_four(V_cache), v, kv_cache_update_idx)
    if W_out is None:
        result = out.transpose(2, 3)
    else:
        checks.row(NAME, "bias_out", bias_out, W_out.shape[1])
        result = out.transpose(1, 2).reshape(z.batch * z.active, -1) @ W_out
        result = result if bias_out is None else result + bias_out
    if update_cache:
        return result
    return result, k.permute(3, 0, 1, 2).flatten(1, 2), v
