"""NF.o_proj: merge attention heads, output projection, bias."""

from __future__ import annotations

from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.enums import QuantizationType
from neuron_autoport.nf.weights import Weight, check_weight, linear


@nf_function(weights=("weight",))
def o_proj(
    active: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    input_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
) -> Tensor:
    """merge(active) @ weight + bias, in the dtype of active. Source: the plugin's contract,
    `o_proj`.

    Args:
        active: [B, N, D, S] (head, head size, sequence: what attention gives with `tp_out=True`),
            or [B, S, N*D] with the heads already merged.
        weight: [N*D, H], tensor or hosted weight.
        bias: [1, H].

    Returns:
        [B, S, H].

    Raises:
        ValueError: active of another rank, a wrong shape.
        NotImplementedError: any quantization or scale.
    """
    checks.member("o_proj", "quantization_type", quantization_type, QuantizationType)
    checks.refuse(
        "o_proj",
        "it computes unquantized",
        quantization_type=quantization_type != QuantizationType.NONE,
        input_scales=input_scales,
        weight_scales=weight_scales,
    )
    if active.dim() not in (3, 4):
        raise ValueError(
            f"NF.o_proj: active must be [B, N, D, S] or [B, S, N*D], got {tuple(active.shape)}; "
            "a batch axis is put in front by active.unsqueeze(0)"
        )
    if active.dim() == 4:
        active = active.permute(0, 3, 1, 2).flatten(2)
    check_weight("o_proj", "weight", weight, active.shape[-1])
    if isinstance(weight, Tensor):
        checks.row("o_proj", "bias", bias, weight.shape[1])
    return linear(active, weight, bias)
