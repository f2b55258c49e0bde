"""RMSNorm of every head of the queries and keys, then the rotary embedding, as Qwen 3 and Gemma 3 do.

The norm's result is rounded to the dtype before it is rotated, as on two lines of torch.
"""

from __future__ import annotations

from torch import Tensor

from neuron_autoport.kernels.dispatch import nk_function
from neuron_autoport.kernels.limits import Limit
from neuron_autoport.kernels.norms import FLOATS, check_norm, rms_formula
from neuron_autoport.kernels.rope import (
    HEAD_MOST,
    ROPE_LIMITS,
    check_rope,
    rotated,
)


@nk_function(
    summary="RMS normalization per head of queries and keys, then rotary embedding",
    equation="rope(rms_norm(q, q_weight)), rope(rms_norm(k, k_weight))",
    phases=("prefill", "decode"),
    limits=(
        Limit("q.dtype", "the engines have no other floating dtype", one_of=FLOATS),
        Limit("k.dtype", "one program does queries and keys", same_as="q.dtype"),
        Limit("q.shape[-1]", "a head and its tables are held in SBUF at once", most=HEAD_MOST),
        Limit("q_weight.ndim", "one weight row is put on all partitions", one_of=(1,)),
        Limit("k_weight.ndim", "one weight row is put on all partitions", one_of=(1,)),
        Limit("q_weight.dtype", "the result is written in the dtype of q", same_as="q.dtype"),
        Limit("k_weight.dtype", "the result is written in the dtype of k", same_as="k.dtype"),
        Limit(
            "cos.dtype",
            "products and sums are rounded to one dtype",
            same_as="q.dtype",
            unless="in_fp32",
        ),
        *ROPE_LIMITS,
    ),
    module="neuron_autoport.kernels.device.qk_norm_rope",
)
def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    weight_in_fp32: bool = False,
    style: str = "half",
    rotary_dim: int | None = None,
    unsqueeze_dim: int = 1,
    in_fp32: bool = False,
) -> tuple[Tensor, Tensor]:
    """rope(rms_norm(q, q_weight, eps, ...), cos, sin, ...), and the same of k.

    Args:
        q: queries [B, Nq, T, D], [B, T, Nq, D] or [T, Nq, D].
        k: keys, the same with Nkv heads.
        q_weight, k_weight: [D], or None: no weight.
        cos, sin, style, rotary_dim, unsqueeze_dim, in_fp32: as in `rope`.
        eps, offset, weight_in_fp32: as in `rms_norm`.

    Returns:
        (q, k), shaped as given.

    Raises:
        ValueError: as `rms_norm` and `rope`; q and k heads of different widths.
    """
    name = "qk_norm_rope"
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"NK.{name}: heads of q {tuple(q.shape)} and k {tuple(k.shape)} differ in width"
        )
    check_norm(name, q, q_weight, offset, weight_in_fp32)
    check_norm(name, k, k_weight, offset, weight_in_fp32)
    width = check_rope(name, q, cos, sin, style, rotary_dim)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    q = rms_formula(q, q_weight, eps, offset, weight_in_fp32)
    k = rms_formula(k, k_weight, eps, offset, weight_in_fp32)
    return rotated(q, cos, sin, style, width, in_fp32), rotated(k, cos, sin, style, width, in_fp32)
