"""NF.qkv_proj: residual add, norm, QKV, QK-norm, RoPE, paged cache write.

Reproduced traps: with `use_block_kv` the torch formula drops the norm, the residuals, the QK-norm
and the layout; one residual without the other is ignored; cache arguments without `use_block_kv`
write nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double import paged
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build
from tests.neuron.double.state import state

DROPPED = ("norm_weights", "norm_b", "mlp_prev", "attn_prev")
CACHE_ARGUMENTS = ("k_cache", "v_cache", "slot_mapping", "block_size", "kv_dtype")
SIDES = ("pre_rope", "post_rope")


def _qk_norm(a: Args, side: str) -> bool:
    """Whether the QK-norm of this side is asked for; refuses what the contract asserts against."""
    q, k = a.values[f"qk_norm_{side}_q_norm"], a.values[f"qk_norm_{side}_k_norm"]
    gammas = a.given([f"qk_norm_{side}_q_gamma", f"qk_norm_{side}_k_gamma"])
    if q is None and k is None:
        a.need(not gammas, f"{gammas} without qk_norm_{side}_q_norm and _k_norm")
        return False
    both = q is not None and k is not None and q.name == k.name == "RMS_NORM"
    a.need(both, f"qk_norm_{side}: both q and k must be RMS_NORM")
    a.need(not a.values[f"qk_norm_{side}_gamma_fused_in_rope_caches"], "gamma_fused must be False")
    a.need(a.num_q_heads is not None and a.num_kv_heads is not None, "QK-norm needs head counts")
    for which in ("q_gamma", "k_gamma", "q_beta", "k_beta"):
        a.shape(f"qk_norm_{side}_{which}", 1, _head(a), optional=True)
    return True


def _head(a: Args) -> int:
    if a.d_head is not None:
        return int(a.d_head)
    a.need(a.num_q_heads is not None and a.num_kv_heads is not None, "d_head or the head counts")
    return int(a.qkv_weights.shape[1] // (a.num_q_heads + 2 * a.num_kv_heads))


def _check_shapes(a: Args) -> None:
    a.shape("hidden", -1, -1, -1)
    batch, length, width = a.hidden.shape
    a.shape("qkv_weights", width, -1)
    columns = a.qkv_weights.shape[1]
    a.shape("bias", 1, columns, optional=True)
    for name in ("norm_weights", "norm_b"):
        a.shape(name, 1, width, optional=True)
    for name in ("mlp_prev", "attn_prev"):
        a.shape(name, batch, length, width, optional=True)
    a.same_dtype("hidden", "qkv_weights", "bias", "mlp_prev", "attn_prev")
    if a.num_q_heads is not None:
        heads = a.num_q_heads + 2 * a.num_kv_heads
        a.need(
            heads * _head(a) == columns, f"{heads} heads of {_head(a)} are not {columns} columns"
        )
    if a.together("cos_cache", "sin_cache"):
        for name in ("cos_cache", "sin_cache"):
            a.shape(name, batch, length, _head(a))
    a.integers("slot_mapping")


def _check_cache(a: Args) -> None:
    """The demands and traps of the cache write."""
    if not a.use_block_kv:
        if a.given(CACHE_ARGUMENTS):
            a.trap("cache arguments without use_block_kv write nothing")
        return
    for name in ("d_head", "num_q_heads", "num_kv_heads", "slot_mapping", "block_size"):
        a.need(a.values[name] is not None, f"use_block_kv needs {name}")
    a.need(not a.transpose_k_cache and not a.fp8_packed, "NotImplementedError in the torch formula")
    paged.check_cache(a)
    blocks_shape = (a.num_kv_heads, a.block_size, a.d_head)
    a.shape("k_cache", -1, *blocks_shape)
    a.need(
        a.slot_mapping.numel() == a.hidden.shape[0] * a.hidden.shape[1],
        "slot_mapping must have B * S elements",
    )
    asked = a.given(DROPPED) + [f"qk_norm_{s}" for s in SIDES if _qk_norm(a, s)]
    if a.norm_type.name != "NO_NORM":
        asked.append("norm_type")
    if a.output_layout.name != "BSD":
        asked.append("output_layout")
    if asked:
        a.trap(f"use_block_kv drops {', '.join(sorted(asked))} in the torch formula")


def check(a: Args) -> str:
    """Shapes, dtypes, refusals and traps; then the kernel's limits."""
    _check_shapes(a)
    a.need(a.quantization_type.name == "NONE", "NotImplementedError: quantization")
    a.need(a.weight_layout.name == "CONTIGUOUS", "weight_layout must be CONTIGUOUS")
    _check_cache(a)
    if a.norm_type.name in ("RMS_NORM", "LAYER_NORM"):
        a.need(a.norm_weights is not None, f"{a.norm_type.name} needs norm_weights")
    if len(a.given(["mlp_prev", "attn_prev"])) == 1:
        a.trap("one residual without the other is ignored")
    norms = [side for side in SIDES if _qk_norm(a, side)]
    a.need(
        a.cos_cache is None or a.num_q_heads is not None,
        "RoPE without head counts would be skipped without a word",
    )
    return _limits(a, norms)


def _limits(a: Args, norms: list[str]) -> str:
    width, columns = a.qkv_weights.shape
    betas = a.given([f"qk_norm_{s}_{w}_beta" for s in SIDES for w in "qk"])
    rules = (
        (width > 24576, f"H = {width} > 24576"),
        (width % 128 != 0, f"H = {width} is no multiple of 128"),
        (columns > 4096, f"F = {columns} > 4096"),
        (columns > width, f"F = {columns} > H = {width}"),
        (len(a.given(["mlp_prev", "attn_prev"])) == 1, "one residual without the other"),
        (a.norm_b is not None and a.norm_type.name != "LAYER_NORM", "norm_b without LAYER_NORM"),
        (a.output_layout.name == "NBdS", "output_layout NBdS"),
        (a.output_layout.name == "NBSd" and a.d_head != 128, "NBSd with d_head other than 128"),
        (bool(betas), "QK-norm beta"),
    )
    return next((f"torch: {why}" for broken, why in rules if broken), KERNEL)


def _prepared(a: Args, dtype: torch.dtype) -> Tensor:
    """The normed input of the matmul; with the cache write the torch formula takes `hidden`."""
    x = F.up(a.hidden)
    if a.use_block_kv and state().semantics == "torch":
        return x
    if a.mlp_prev is not None and a.attn_prev is not None:
        x = F.rounded(x + F.up(a.mlp_prev) + F.up(a.attn_prev), dtype)
    x = F.hidden_norm(x, a.norm_type, a.eps, a.norm_weights, a.norm_b, a.hidden_actual)
    return F.rounded(x, dtype)


def _rotated(a: Args, heads: Tensor) -> Tensor:
    """RoPE on query and key heads [B, S, n, d]."""
    half = heads.shape[-1] // 2
    cos, sin = F.up(a.cos_cache)[:, :, None], F.up(a.sin_cache)[:, :, None]
    for name, table in (("cos_cache", cos), ("sin_cache", sin)):
        a.need(torch.equal(table[..., :half], table[..., half:]), f"{name}: both halves are equal")
    return F.rope_half(heads, cos[..., :half], sin[..., :half])


def _normed(a: Args, side: str, heads: Tensor) -> Tensor:
    """Per-head RMS norm of query and key heads [B, S, n, d]."""
    eps = a.values[f"qk_norm_{side}_eps"]
    parts = []
    for which, part in zip("qk", heads.split([a.num_q_heads, a.num_kv_heads], 2), strict=True):
        gamma, beta = (a.values[f"qk_norm_{side}_{which}_{what}"] for what in ("gamma", "beta"))
        y = F.rms(part, eps, gamma)
        parts.append(y if beta is None else y + F.up(beta).reshape(-1))
    return torch.cat(parts, 2)


def compute(a: Args) -> list[Tensor]:
    """The projected heads in the asked layout; or the queries, after K and V were written."""
    dtype = a.hidden.dtype
    y = _prepared(a, dtype) @ F.up(a.qkv_weights)
    y = F.rounded(y if a.bias is None else y + F.up(a.bias), dtype)
    batch, length, _ = y.shape
    if a.num_q_heads is not None:
        y = _shaped_heads(a, y.view(batch, length, -1, _head(a)), dtype)
        if a.use_block_kv:
            return [_written(a, y, dtype)]
        y = y.flatten(2)
    if a.output_layout.name == "BSD":
        return [y.to(dtype)]
    heads = y.view(batch, length, -1, _head(a)).permute(2, 0, 1, 3)
    return [(heads if a.output_layout.name == "NBSd" else heads.transpose(2, 3)).to(dtype)]


def _shaped_heads(a: Args, y: Tensor, dtype: torch.dtype) -> Tensor:
    """QK-norm and RoPE on the first query and key heads of [B, S, n, d]."""
    turned = a.num_q_heads + a.num_kv_heads
    qk, v = y[:, :, :turned], y[:, :, turned:]
    plain = a.use_block_kv and state().semantics == "torch"
    if not plain and a.qk_norm_pre_rope_q_norm is not None:
        qk = F.rounded(_normed(a, "pre_rope", qk), dtype)
    if a.cos_cache is not None:
        qk = F.rounded(_rotated(a, qk), dtype)
    if not plain and a.qk_norm_post_rope_q_norm is not None:
        qk = F.rounded(_normed(a, "post_rope", qk), dtype)
    return torch.cat([qk, v], 2)


def _written(a: Args, heads: Tensor, dtype: torch.dtype) -> Tensor:
    """Write K and V; return the queries [B, S, nq * d]."""
    q, k, v = heads.split([a.num_q_heads, a.num_kv_heads, a.num_kv_heads], 2)
    for cache, rows, scale in ((a.k_cache, k, a.k_scale), (a.v_cache, v, a.v_scale)):
        rows = rows.flatten(0, 1)
        if scale is not None:
            rows = (rows / F.up(scale).flatten()[0]).clamp(a.fp8_min, a.fp8_max)
        paged.write(a, cache, a.slot_mapping, rows, a.block_size, kernel_skips=False)
    return q.flatten(2).to(dtype)


def shapes(a: Args) -> Made:
    """Shape and dtype of the output."""
    batch, length, _ = a.hidden.shape
    columns = a.qkv_weights.shape[1]
    if a.use_block_kv:
        return [((batch, length, a.num_q_heads * a.d_head), a.hidden.dtype)]
    if a.output_layout.name == "BSD":
        return [((batch, length, columns), a.hidden.dtype)]
    d = _head(a)
    tail = (length, d) if a.output_layout.name == "NBSd" else (d, length)
    return [((columns // d, batch, *tail), a.hidden.dtype)]


def result(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    """The output; with the cache write (q, k_cache, v_cache)."""
    if args["use_block_kv"]:
        return outputs[0], args["k_cache"], args["v_cache"]
    return outputs[0]


qkv_proj = build(Function("qkv_proj", check, shapes, compute, result, ("k_cache", "v_cache")))
