"""What rms_norm and add_rms_norm share: the formula of the torch reference, its checks, its limits."""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_autoport.kernels.limits import Limit

FLOATS = ("float32", "bfloat16", "float16")
HIDDEN_MOST = 16384

ROW_DTYPE = Limit("x.dtype", "the engines have no other floating dtype", one_of=FLOATS)
ROW_LIMITS = (
    ROW_DTYPE,
    Limit("x.shape[-1]", "a row and the weight are held in SBUF at once", most=HIDDEN_MOST),
)
WEIGHT_LIMITS = (
    Limit("weight.ndim", "one weight row is put on all partitions", one_of=(1,)),
    Limit("weight.shape[-1]", "one weight per column of the row", same_as="x.shape[-1]"),
)
WEIGHT_DTYPE = Limit(
    "weight.dtype", "the kernel writes its result in the dtype of x", same_as="x.dtype"
)


def check_norm(
    function: str, x: Tensor, weight: Tensor | None, offset: float, weight_in_fp32: bool
) -> None:
    """Refuse an offset in a form that has none, and a weight of another width.

    Raises:
        ValueError: either of them.
    """
    if offset != 0.0 and (weight is None or not weight_in_fp32):
        raise ValueError(
            f"NK.{function}: offset={offset} needs a weight and weight_in_fp32=True; "
            "no model adds an offset in the other forms"
        )
    if weight is not None and weight.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"NK.{function}: last axes of weight {tuple(weight.shape)} and x {tuple(x.shape)} differ"
        )


def weighted(
    normed: Tensor, weight: Tensor | None, offset: float, weight_in_fp32: bool, dtype: torch.dtype
) -> Tensor:
    """A float32 normed row times its weight, in one of the three rounding orders of `rms_norm`."""
    if weight is None:
        return normed.to(dtype)
    if not weight_in_fp32:
        return weight * normed.to(dtype)
    scale = weight.float()
    if offset != 0.0:
        scale = offset + scale
    return (normed * scale).to(dtype)


def rms_formula(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, weight_in_fp32: bool
) -> Tensor:
    """The torch reference of RMSNorm; see `rms_norm`."""
    x32 = x.to(torch.float32)
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weighted(normed, weight, offset, weight_in_fp32, x.dtype)
