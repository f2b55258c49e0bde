"""RMSNorm over the last axis, in the rounding orders that Hugging Face models are written in.

The statistics are float32 always. The forms differ in where the result is cast back to the input's
dtype, and in the dtype of the weight's product: in bfloat16 that changes bits, so each form is kept
as its source has it.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    if offset != 0.0 and (weight is None or not weight_in_fp32):
        raise ValueError(
            f"NK.rms_norm: offset={offset} needs a weight and weight_in_fp32=True; "
            "no model adds an offset in the other forms"
        )
    if weight is not None and weight.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"NK.rms_norm: last axes of weight {tuple(weight.shape)} and x {tuple(x.shape)} differ"
        )
    x32 = x.to(torch.float32)
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)
    if not weight_in_fp32:
        return weight * normed.to(x.dtype)
    scale = weight.float()
    if offset != 0.0:
        scale = offset + scale
    return (normed * scale).to(x.dtype)
