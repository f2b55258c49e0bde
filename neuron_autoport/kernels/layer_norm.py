"""LayerNorm over the last axis, as torch has it and as models write it out in float32.

Mean and variance are float32 always and there is one rounding, at the end. The written-out form (Cohere)
differs from torch's in float32's last bits, and allows a float32 weight beside a bfloat16 input.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_autoport.kernels.dispatch import nk_function
from neuron_autoport.kernels.limits import Limit
from neuron_autoport.kernels.norms import ROW_DTYPE, WEIGHT_LIMITS

HIDDEN_MOST = 12288


@nk_function(
    summary="layer normalization of rows, with or without weight and bias, or 1 + w",
    equation="(x - mean(x)) * rsqrt(mean((x - mean(x))^2) + eps) * (offset + w) + b",
    phases=("prefill", "decode"),
    limits=(
        ROW_DTYPE,
        Limit(
            "x.shape[-1]",
            "a row, the weight and the bias are held in SBUF at once",
            most=HIDDEN_MOST,
        ),
        *WEIGHT_LIMITS,
        Limit("bias.ndim", "one bias row is put on all partitions", one_of=(1,)),
    ),
    module="neuron_autoport.kernels.device.layer_norm",
)
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    weight_in_fp32: bool = False,
) -> Tensor:
    """(x - mean) * rsqrt(var + eps) * (offset + weight) + bias, var the population variance.

    | call | torch it stands for | written so in |
    |---|---|---|
    | weight_in_fp32=False | F.layer_norm(x, (H,), weight, bias, eps) | GPT-NeoX, Falcon, OLMo |
    | weight_in_fp32=True | (weight.float() * normed32 [+ bias.float()]).to(x.dtype) | Cohere |

    Args:
        x: [..., H], any floating dtype.
        weight: [H]; with weight_in_fp32 also [..., H], broadcast from the right (Cohere's QK-norm).
        bias: as weight.
        eps: added to the variance, inside the root.
        offset: added to the weight in float32; with weight_in_fp32 only.
        weight_in_fp32: the written-out form.

    Returns:
        [..., H] in the dtype of x.

    Raises:
        ValueError: an offset without weight_in_fp32 or weight, or a weight or bias of another width.
    """
    _check(x, weight, bias, offset, weight_in_fp32)
    if not weight_in_fp32:
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
    x32 = x.to(torch.float32)
    centred = x32 - x32.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        scale = weight.float()
        y = (scale if offset == 0.0 else offset + scale) * y
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype)


def _check(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, offset: float, weight_in_fp32: bool
) -> None:
    if offset != 0.0 and (weight is None or not weight_in_fp32):
        raise ValueError(f"NK.layer_norm: offset={offset} needs a weight and weight_in_fp32=True")
    for name, row in (("weight", weight), ("bias", bias)):
        if row is not None and row.shape[-1] != x.shape[-1]:
            raise ValueError(
                f"NK.layer_norm: last axes of {name} {tuple(row.shape)} and x {tuple(x.shape)} differ"
            )
