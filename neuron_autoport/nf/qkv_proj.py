"""NF.qkv_proj: residual add + norm + QKV matmul + bias + QK-norm + RoPE (+ paged KV write).

The torch reference follows the plugin's torch formula. Arguments that formula would drop without a
word (one residual without the other; a norm, residual, QK-norm or layout together with the cache
write; cache arguments without it) are refused by name. Arguments that only steer the kernel's
memory allocation change no result and are accepted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.enums import NormType, QKVOutputLayout, QKVWeightLayout, QuantizationType
from neuron_autoport.nf.kv_write import KVTarget, check_target, write_kv
from neuron_autoport.nf.norms import check_norm, hidden_norm
from neuron_autoport.nf.qkv_heads import (
    QKNorm,
    check_qk_norm,
    check_rope,
    finish_heads,
    resolve_heads,
    to_layout,
)
from neuron_autoport.nf.weights import Weight, check_weight, linear

NAME = "qkv_proj"


def _residual(hidden: Tensor, mlp_prev: Tensor | None, attn_prev: Tensor | None) -> Tensor:
    """hidden + mlp_prev + attn_prev; both residuals or neither."""
    if mlp_prev is None and attn_prev is None:
        return hidden
    if mlp_prev is None or attn_prev is None:
        missing = "mlp_prev" if mlp_prev is None else "attn_prev"
        raise ValueError(
            f"NF.{NAME}: {missing} is None; mlp_prev and attn_prev come together or not at all"
        )
    checks.same_shape(NAME, "mlp_prev", mlp_prev, hidden, "hidden")
    checks.same_shape(NAME, "attn_prev", attn_prev, hidden, "hidden")
    return hidden + mlp_prev + attn_prev


def _divisor(hidden_actual: int | None, norm_type: NormType, width: int) -> int:
    """The number the RMS divides by: H without its padding."""
    if hidden_actual is None or hidden_actual == width:
        return width
    if norm_type not in (NormType.RMS_NORM, NormType.RMS_NORM_SKIP_GAMMA):
        checks.unused(NAME, f"norm_type is {norm_type.name}", hidden_actual=hidden_actual)
    if not 0 < hidden_actual < width:
        raise ValueError(f"NF.{NAME}: hidden_actual must be in 1..{width}, got {hidden_actual}")
    return hidden_actual


def _check_cache_use(
    use_block_kv: bool,
    target: KVTarget,
    d_head: int | None,
    num_q_heads: int | None,
    num_kv_heads: int | None,
    **dropped: object,
) -> None:
    """With the cache write nothing of `dropped`, and head sizes; without it no cache argument."""
    if not use_block_kv:
        checks.unused(NAME, "use_block_kv is False", **target._asdict())
        return
    why = "with use_block_kv=True only bias, RoPE and the write are done"
    checks.refuse(NAME, why, **dropped)
    checks.required(
        NAME,
        "with use_block_kv=True",
        d_head=d_head,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
    )


def _project(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    check_weight(NAME, "qkv_weights", weight, x.shape[-1])
    if isinstance(weight, Tensor):
        checks.row(NAME, "bias", bias, weight.shape[1])
    return linear(x, weight, bias)


def _refuse_unsupported(
    quantization_type: QuantizationType,
    weight_layout: QKVWeightLayout,
    output_layout: QKVOutputLayout,
    **arguments: object,
) -> None:
    """What only the kernel can do."""
    checks.member(NAME, "quantization_type", quantization_type, QuantizationType)
    checks.member(NAME, "weight_layout", weight_layout, QKVWeightLayout)
    checks.member(NAME, "output_layout", output_layout, QKVOutputLayout)
    checks.refuse(
        NAME,
        "only the Neuron kernel has it",
        quantization_type=quantization_type != QuantizationType.NONE,
        weight_layout=weight_layout != QKVWeightLayout.CONTIGUOUS,
        **arguments,
    )


@nf_function(weights=("qkv_weights",))
def qkv_proj(
    hidden: Tensor,
    qkv_weights: Weight,
    norm_weights: Tensor | None = None,
    mlp_prev: Tensor | None = None,
    attn_prev: Tensor | None = None,
    d_head: int | None = None,
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD,
    eps: float = 1e-6,
    norm_type: NormType = NormType.NO_NORM,
    use_dma_transpose: bool = True,
    store_output_in_sbuf: bool = False,
    bias: Tensor | None = None,
    norm_b: Tensor | None = None,
    hidden_actual: int | None = None,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    qkv_w_scale: Tensor | None = None,
    qkv_in_scale: Tensor | None = None,
    weight_layout: QKVWeightLayout = QKVWeightLayout.CONTIGUOUS,
    sbm_lower_bound: int | None = None,
    sbm_upper_bound: int | None = None,
    sbm_use_auto_alloc: bool = False,
    sbm_default_stack_alloc: bool = True,
    use_auto_allocation: bool = False,
    qk_norm_pre_rope_q_norm: NormType | None = None,
    qk_norm_pre_rope_k_norm: NormType | None = None,
    qk_norm_pre_rope_eps: float = 1e-6,
    qk_norm_pre_rope_gamma_fused_in_rope_caches: bool = False,
    qk_norm_pre_rope_q_gamma: Tensor | None = None,
    qk_norm_pre_rope_k_gamma: Tensor | None = None,
    qk_norm_pre_rope_q_beta: Tensor | None = None,
    qk_norm_pre_rope_k_beta: Tensor | None = None,
    qk_norm_post_rope_q_norm: NormType | None = None,
    qk_norm_post_rope_k_norm: NormType | None = None,
    qk_norm_post_rope_eps: float = 1e-6,
    qk_norm_post_rope_gamma_fused_in_rope_caches: bool = False,
    qk_norm_post_rope_q_gamma: Tensor | None = None,
    qk_norm_post_rope_k_gamma: Tensor | None = None,
    qk_norm_post_rope_q_beta: Tensor | None = None,
    qk_norm_post_rope_k_beta: Tensor | None = None,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    fp8_max: float | None = None,
    fp8_min: float | None = None,
    kv_dtype: torch.dtype | None = None,
    use_block_kv: bool = False,
    transpose_k_cache: bool = False,
    fp8_packed: bool = False,
    block_size: int | None = None,
    slot_mapping: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Fused QKV projection. Source: the plugin's contract, `qkv_proj`.

    x = norm(hidden + mlp_prev + attn_prev); y = x @ qkv_weights + bias, all in the dtype of hidden;
    then on the q and k heads QK-norm (float32 inside), half-split RoPE, QK-norm. Nothing is written
    into an argument except the caches.

    Args:
        hidden: [B, S, H]; mlp_prev, attn_prev: same, both or neither. The sum is not returned.
        qkv_weights: [H, F], tensor or hosted weight; columns [Q heads | K heads | V heads].
        norm_weights, norm_b: [1, H]; `norm_b` for LAYER_NORM only. hidden_actual: divisor of the
            RMS.
        bias: [1, F]. d_head: needed by NBSd, NBdS and the cache write, else F / (nq + 2 nkv).
        cos_cache, sin_cache: [B, S, d_head], both halves equal; needs num_q_heads and num_kv_heads
            (per rank).
        qk_norm_*: RMS_NORM for both q and k; gamma and beta [1, d_head].
        k_cache, v_cache: [num_blocks, num_kv_heads, block_size, d_head], with `use_block_kv=True`:
            K after RoPE and V are written in place at slot_mapping (B*S elements; negative: not
            written), divided by k_scale/v_scale [1, 1] and clamped to fp8_min..fp8_max if those are
            given.

    Returns:
        BSD [B, S, F]; NBSd [heads, B, S, d_head]; NBdS [heads, B, d_head, S]; with `use_block_kv`
        the triple (q [B, S, nq*d_head], k_cache, v_cache).

    Raises:
        ValueError: a wrong shape, a missing argument, or one that would have no effect.
        NotImplementedError: what only the kernel can do; with `use_block_kv` also norm, residual,
            QK-norm and layout.
    """
    if hidden.dim() != 3:
        raise ValueError(
            f"NF.{NAME}: hidden must be [B, S, H], got {tuple(hidden.shape)}; "
            "a batch axis is put in front by hidden.unsqueeze(0)"
        )
    _refuse_unsupported(
        quantization_type,
        weight_layout,
        output_layout,
        qkv_w_scale=qkv_w_scale,
        qkv_in_scale=qkv_in_scale,
        store_output_in_sbuf=store_output_in_sbuf,
        transpose_k_cache=transpose_k_cache,
        fp8_packed=fp8_packed,
    )
    pre = QKNorm(
        qk_norm_pre_rope_q_norm,
        qk_norm_pre_rope_k_norm,
        qk_norm_pre_rope_eps,
        qk_norm_pre_rope_gamma_fused_in_rope_caches,
        qk_norm_pre_rope_q_gamma,
        qk_norm_pre_rope_k_gamma,
        qk_norm_pre_rope_q_beta,
        qk_norm_pre_rope_k_beta,
    )
    post = QKNorm(
        qk_norm_post_rope_q_norm,
        qk_norm_post_rope_k_norm,
        qk_norm_post_rope_eps,
        qk_norm_post_rope_gamma_fused_in_rope_caches,
        qk_norm_post_rope_q_gamma,
        qk_norm_post_rope_k_gamma,
        qk_norm_post_rope_q_beta,
        qk_norm_post_rope_k_beta,
    )
    target = KVTarget(
        k_cache, v_cache, k_scale, v_scale, fp8_max, fp8_min, kv_dtype, block_size, slot_mapping
    )
    _check_cache_use(
        use_block_kv,
        target,
        d_head,
        num_q_heads,
        num_kv_heads,
        norm_type=norm_type != NormType.NO_NORM,
        mlp_prev=mlp_prev,
        attn_prev=attn_prev,
        qk_norm_pre_rope_q_norm=pre.enabled,
        qk_norm_post_rope_q_norm=post.enabled,
        output_layout=output_layout != QKVOutputLayout.BSD,
    )
    x = _residual(hidden, mlp_prev, attn_prev)
    width = hidden.shape[-1]
    check_norm(NAME, norm_type, width, norm_weights, norm_b, "norm_weights norm_b")
    divisor = _divisor(hidden_actual, norm_type, width)
    x = hidden_norm(x, norm_type, norm_weights, norm_b, eps, divisor)
    y = _project(x, qkv_weights, bias)

    heads = resolve_heads(num_q_heads, num_kv_heads, d_head, y.shape[-1])
    check_rope(hidden, cos_cache, sin_cache, heads)
    size = None if heads is None else heads.size
    check_qk_norm("pre_rope", pre, size)
    check_qk_norm("post_rope", post, size)
    if pre.enabled or post.enabled or cos_cache is not None:
        checks.required(NAME, "for QK-norm", num_q_heads=num_q_heads, num_kv_heads=num_kv_heads)
        assert heads is not None
        y = finish_heads(y, heads, pre, cos_cache, sin_cache, post)
    if not use_block_kv:
        return to_layout(y, output_layout, d_head)

    assert heads is not None  # _check_cache_use asked for the counts
    check_target(target, hidden.shape[0] * hidden.shape[1], heads)
    assert k_cache is not None and v_cache is not None
    k_start, v_start = heads.q * heads.size, (heads.q + heads.kv) * heads.size
    write_kv(y[..., k_start:v_start], y[..., v_start:], heads, target)
    return y[..., :k_start], k_cache, v_cache
