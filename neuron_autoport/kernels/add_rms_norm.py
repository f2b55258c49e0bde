"""Residual add and RMSNorm in one pass over the rows, with both results.

The sum is rounded to its dtype before the norm reads it, exactly as `residual + x` on a line of its own
does: the next residual add and this norm then see the same bits.
"""

from __future__ import annotations

from torch import Tensor

from neuron_autoport.kernels.dispatch import nk_function
from neuron_autoport.kernels.limits import Limit
from neuron_autoport.kernels.norms import (
    ROW_LIMITS,
    WEIGHT_DTYPE,
    WEIGHT_LIMITS,
    check_norm,
    rms_formula,
)


@nk_function(
    summary="residual add and RMS normalization of the sum, both results returned",
    equation="s = residual + x; s * rsqrt(mean(s^2) + eps) * (offset + w), s",
    phases=("prefill", "decode"),
    limits=(
        *ROW_LIMITS,
        Limit("residual.dtype", "the sum is kept in the dtype of x", same_as="x.dtype"),
        *WEIGHT_LIMITS,
        WEIGHT_DTYPE,
    ),
    module="neuron_autoport.kernels.device.add_rms_norm",
)
def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    weight_in_fp32: bool = False,
) -> tuple[Tensor, Tensor]:
    """s = residual + x, and rms_norm(s, weight, eps, offset=..., weight_in_fp32=...).

    Args:
        x: [..., H], any floating dtype: the output of attention or of the MLP.
        residual: as x.
        weight, eps, offset, weight_in_fp32: as in `rms_norm`.

    Returns:
        (normed, summed), both [..., H]. summed is `residual + x` bit for bit.

    Raises:
        ValueError: x and residual differ in shape; else as `rms_norm`.
    """
    if x.shape != residual.shape:
        raise ValueError(
            f"NK.add_rms_norm: shapes of x {tuple(x.shape)} and residual {tuple(residual.shape)} differ"
        )
    check_norm("add_rms_norm", x, weight, offset, weight_in_fp32)
    summed = residual + x
    return rms_formula(summed, weight, eps, offset, weight_in_fp32), summed
