"""What `qkv_proj` does to the heads after the matmul: QK-norm, RoPE, output layout.

All per token and per head; columns of the matmul result are [Q heads | K heads | V heads], d_head
each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.enums import NormType, QKVOutputLayout


class Heads(NamedTuple):
    """How many heads per rank, and their size."""

    q: int
    kv: int
    size: int

    @property
    def columns(self) -> int:
        """Width of the fused result."""
        return (self.q + 2 * self.kv) * self.size


class QKNorm(NamedTuple):
    """The arguments of one QK-norm (before or after RoPE), in the order of the contract."""

    q_norm: NormType | None
    k_norm: NormType | None
    eps: float
    gamma_fused_in_rope_caches: bool
    q_gamma: Tensor | None
    k_gamma: Tensor | None
    q_beta: Tensor | None
    k_beta: Tensor | None

    @property
    def enabled(self) -> bool:
        """Whether either norm is asked for."""
        return self.q_norm is not None or self.k_norm is not None


def resolve_heads(
    num_q_heads: int | None, num_kv_heads: int | None, d_head: int | None, width: int
) -> Heads | None:
    """Head counts and size if the counts are given; checked against the number of columns."""
    if num_q_heads is None and num_kv_heads is None:
        return None
    if num_q_heads is None or num_kv_heads is None:
        missing = "num_q_heads" if num_q_heads is None else "num_kv_heads"
        raise ValueError(
            f"NF.qkv_proj: {missing} is None; num_q_heads and num_kv_heads come together"
        )
    total = num_q_heads + 2 * num_kv_heads
    heads = Heads(num_q_heads, num_kv_heads, width // total if d_head is None else d_head)
    if heads.columns != width:
        raise ValueError(
            f"NF.qkv_proj: {num_q_heads} q and 2 x {num_kv_heads} kv heads of size {d_head} do not "
            f"make the {width} columns of qkv_weights"
        )
    return heads


def check_rope(hidden: Tensor, cos: Tensor | None, sin: Tensor | None, heads: Heads | None) -> None:
    """cos and sin come together, with head counts, as [B, S, d_head]."""
    if cos is None and sin is None:
        return
    checks.required(
        "qkv_proj", "for RoPE", cos_cache=cos, sin_cache=sin, num_q_heads=heads, num_kv_heads=heads
    )
    assert cos is not None and sin is not None and heads is not None
    shape = (*hidden.shape[:2], heads.size)
    for name, table in (("cos_cache", cos), ("sin_cache", sin)):
        if tuple(table.shape) != shape or heads.size % 2:
            raise ValueError(
                f"NF.qkv_proj: {name} must be [B, S, d_head] = {tuple(shape)} with an even d_head, "
                f"got {tuple(table.shape)}; one table for all rows: {name}.expand(B, -1, -1)"
            )


def check_qk_norm(stage: str, norm: QKNorm, d_head: int | None) -> None:
    """Refuse a QK-norm the contract does not have.

    Args:
        stage: "pre_rope" or "post_rope", for messages.

    Raises:
        ValueError: weights without a norm, or not RMS_NORM on both q and k.
        NotImplementedError: gamma folded into the RoPE tables.
    """
    prefix = f"qk_norm_{stage}"
    fused = {f"{prefix}_gamma_fused_in_rope_caches": norm.gamma_fused_in_rope_caches}
    checks.refuse("qkv_proj", "only the Neuron kernel has it; pass q_gamma and k_gamma", **fused)
    weights = {
        f"{prefix}_q_gamma": norm.q_gamma,
        f"{prefix}_k_gamma": norm.k_gamma,
        f"{prefix}_q_beta": norm.q_beta,
        f"{prefix}_k_beta": norm.k_beta,
    }
    if not norm.enabled:
        checks.unused("qkv_proj", f"{prefix}_q_norm and {prefix}_k_norm are None", **weights)
        return
    for side, kind in (("q", norm.q_norm), ("k", norm.k_norm)):
        if kind != NormType.RMS_NORM:
            raise ValueError(
                f"NF.qkv_proj: {prefix}_{side}_norm must be RMS_NORM when either QK-norm is on, "
                f"got {kind!r}"
            )
    if d_head is not None:
        for name, value in weights.items():
            checks.row("qkv_proj", name, value, d_head)


def _per_head(q: Tensor | None, k: Tensor | None, heads: Heads, fill: float) -> Tensor | None:
    """[1, d] weights of q and k as [q + kv heads, d]; `fill` for the one that is absent."""
    given = q if q is not None else k
    if given is None:
        return None
    neutral = torch.full_like(given, fill)
    q_rows = (neutral if q is None else q).expand(heads.q, heads.size)
    k_rows = (neutral if k is None else k).expand(heads.kv, heads.size)
    return torch.cat((q_rows, k_rows))


def _qk_norm(qk: Tensor, heads: Heads, norm: QKNorm) -> Tensor:
    """RMSNorm per head of qk [B, S, q + kv heads, d]; float32 inside, gamma and beta too."""
    x = qk.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    gamma = _per_head(norm.q_gamma, norm.k_gamma, heads, 1.0)
    if gamma is not None:
        x = x * gamma
    beta = _per_head(norm.q_beta, norm.k_beta, heads, 0.0)
    if beta is not None:
        x = x + beta
    return x.to(qk.dtype)


def _rope(qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split RoPE of qk [B, S, heads, d]: pairs (i, i + d/2). Reads the tables' first half."""
    half = qk.shape[-1] // 2
    c = cos[..., :half].unsqueeze(2)
    s = sin[..., :half].unsqueeze(2)
    first, second = qk[..., :half], qk[..., half:]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(qk.dtype)


def finish_heads(
    y: Tensor, heads: Heads, pre: QKNorm, cos: Tensor | None, sin: Tensor | None, post: QKNorm
) -> Tensor:
    """QK-norm, RoPE, QK-norm on the q and k columns of y [B, S, F]; v columns pass through."""
    count = heads.q + heads.kv
    qk, v = y[..., : count * heads.size], y[..., count * heads.size :]
    qk = qk.reshape(*y.shape[:-1], count, heads.size)
    if pre.enabled:
        qk = _qk_norm(qk, heads, pre)
    if cos is not None and sin is not None:
        qk = _rope(qk, cos, sin)
    if post.enabled:
        qk = _qk_norm(qk, heads, post)
    return torch.cat((qk.flatten(-2), v), dim=-1)


def to_layout(y: Tensor, layout: QKVOutputLayout, d_head: int | None) -> Tensor:
    """y [B, S, F] as BSD (itself), NBSd [heads, B, S, d] or NBdS [heads, B, d, S], contiguous.

    Raises:
        ValueError: no d_head for a layout by heads, or F is no multiple of it.
    """
    if layout == QKVOutputLayout.BSD:
        return y
    if d_head is None or y.shape[-1] % d_head:
        raise ValueError(
            f"NF.qkv_proj: output_layout {layout.name} needs a d_head that divides the "
            f"{y.shape[-1]} output columns, got {d_head}"
        )
    order = (2, 0, 1, 3) if layout == QKVOutputLayout.NBSd else (2, 0, 3, 1)
    return y.reshape(*y.shape[:-1], -1, d_head).permute(order).contiguous()
