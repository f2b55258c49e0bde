"""RMSNorm over the last axis, in the rounding orders that Hugging Face models are written in.

The statistics are float32 always. The forms differ in where the result is cast back to the input's
dtype, and in the dtype of the weight's product: in bfloat16 that changes bits, so each form is kept
as its source has it.
"""

from __future__ import annotations

from torch import Tensor

from neuron_autoport.kernels.dispatch import nk_function
from neuron_autoport.kernels.norms import (
    ROW_LIMITS,
    WEIGHT_DTYPE,
    WEIGHT_LIMITS,
    check_norm,
    rms_formula,
)


@nk_function(
    summary="RMS normalization of rows, both rounding orders, 1 + w, or without a weight",
    equation="x * rsqrt(mean(x^2) + eps) * (offset + w)",
    phases=("prefill", "decode"),
    limits=(*ROW_LIMITS, *WEIGHT_LIMITS, WEIGHT_DTYPE),
    module="neuron_autoport.kernels.device.rms_norm",
)
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    weight_in_fp32: bool = False,
) -> Tensor:
    """x32 * rsqrt(mean(x32^2) + eps), times a weight, with x32 = x in float32.

    | call | result | written so in |
    |---|---|---|
    | weight None | normed.to(x.dtype) | Llama 4 L2 norm |
    | weight_in_fp32=False | weight * normed.to(x.dtype) | Llama, Qwen, Mistral |
    | weight_in_fp32=True | (normed * (offset + weight.float())).to(x.dtype) | OLMo 2, Gemma (1.0) |

    Args:
        x: [..., H], any floating dtype.
        weight: [..., H], broadcast against x from the right; [H] as a rule.
        eps: added to the mean square, inside the root.
        offset: added to the weight in float32 (Gemma stores weight - 1).
        weight_in_fp32: multiply by the weight in float32, before the cast back.

    Returns:
        [..., H] in the dtype of x; with weight_in_fp32=False in that of `weight * x` (float32 if a
        float32 weight meets a bfloat16 x, as in the source).

    Raises:
        ValueError: an offset in a form that has none, or a weight of another width.
    """
    check_norm("rms_norm", x, weight, offset, weight_in_fp32)
    return rms_formula(x, weight, eps, offset, weight_in_fp32)
