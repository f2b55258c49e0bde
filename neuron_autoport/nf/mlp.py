"""NF.mlp: residual add + norm + gate/up projections + activation + down projection.

The torch reference follows the plugin's torch formula. Unlike it, the clamps are applied, and every
argument that would be ignored (quantization, scales, output dtype, weight layout) is refused by
name.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.dispatch import nf_function
from neuron_autoport.nf.enums import ActFnType, NormType, QuantizationType
from neuron_autoport.nf.norms import check_norm, hidden_norm
from neuron_autoport.nf.weights import Weight, check_weight, gate_up, gated, linear


def _activation(x: Tensor, act_fn: ActFnType) -> Tensor:
    if act_fn == ActFnType.GELU:
        return F.gelu(x)
    if act_fn == ActFnType.GELU_Tanh_Approx:
        return F.gelu(x, approximate="tanh")
    return F.silu(x)  # SiLU, and Swish: the same in the plugin's torch path of mlp


def _clamp(x: Tensor, low: float | None, high: float | None) -> Tensor:
    return x if low is None and high is None else torch.clamp(x, low, high)


def _inside(
    x: Tensor,
    gate_w: Weight,
    gate_b: Tensor | None,
    up_w: Weight,
    up_b: Tensor | None,
    act_fn: ActFnType,
    clamps: dict[str, float | None],
) -> Tensor:
    """act(clamp(x @ gate_w + gate_b)) * clamp(x @ up_w + up_b), [T, I]."""
    if all(limit is None for limit in clamps.values()):
        made = gated(x, gate_w, gate_b, up_w, up_b, act_fn)
        if made is not None:
            return made
    gate, up = gate_up(x, gate_w, gate_b, up_w, up_b)
    gate = _clamp(gate, clamps["gate_clamp_lower_limit"], clamps["gate_clamp_upper_limit"])
    up = _clamp(up, clamps["up_clamp_lower_limit"], clamps["up_clamp_upper_limit"])
    return _activation(gate, act_fn) * up


def _check_biases(
    up_w: Weight, down_w: Weight, gate_b: Tensor | None, up_b: Tensor | None, down_b: Tensor | None
) -> None:
    """Biases are rows [1, out]. The width of a hosted weight is the host's business."""
    if isinstance(up_w, Tensor):
        checks.row("mlp", "gate_b", gate_b, up_w.shape[1])
        checks.row("mlp", "up_b", up_b, up_w.shape[1])
    if isinstance(down_w, Tensor):
        checks.row("mlp", "down_b", down_b, down_w.shape[1])


def _check(
    hidden: Tensor,
    gate_w: Weight,
    up_w: Weight,
    skip_gate: bool,
    gate_b: Tensor | None,
    fused_add_tensor: Tensor | None,
    store_fused_add_result: bool,
    clamps: dict[str, float | None],
) -> None:
    if hidden.dim() != 2:
        raise ValueError(
            f"NF.mlp: hidden must be [T, H], got {tuple(hidden.shape)}; "
            "flatten it by x.flatten(0, -2) and give the result the shape back"
        )
    checks.same_shape("mlp", "fused_add_tensor", fused_add_tensor, hidden, "hidden")
    if store_fused_add_result and fused_add_tensor is None:
        checks.unused("mlp", "fused_add_tensor is None", store_fused_add_result=True)
    check_weight("mlp", "up_w", up_w, hidden.shape[-1])
    if skip_gate:
        checks.unused("mlp", "skip_gate is True", gate_b=gate_b)
        checks.refuse(
            "mlp", "skip_gate is True and the contract does not say where it acts", **clamps
        )
        return
    check_weight("mlp", "gate_w", gate_w, hidden.shape[-1])
    if isinstance(gate_w, Tensor) and isinstance(up_w, Tensor) and gate_w.shape != up_w.shape:
        raise ValueError(
            f"NF.mlp: gate_w {tuple(gate_w.shape)} and up_w {tuple(up_w.shape)} must have one shape"
        )


def _refuse_unsupported(
    hidden: Tensor,
    quantization_type: QuantizationType,
    scales: dict[str, Tensor | None],
    quant_clipping_bound: float,
    output_dtype: torch.dtype | None,
    gate_up_w_layout: object,
) -> None:
    checks.member("mlp", "quantization_type", quantization_type, QuantizationType)
    quantized = quantization_type != QuantizationType.NONE
    checks.refuse("mlp", "it computes unquantized", quantization_type=quantized, **scales)
    if quant_clipping_bound != 0.0:  # an `if`: in a dynamic graph the comparison is symbolic
        checks.refuse("mlp", "it computes unquantized", quant_clipping_bound=True)
    other_dtype = output_dtype is not None and output_dtype != hidden.dtype
    checks.refuse("mlp", "the result has the dtype of hidden; cast it", output_dtype=other_dtype)
    checks.refuse("mlp", "it takes plain [in, out] weights", gate_up_w_layout=gate_up_w_layout)


@nf_function(weights=("gate_w", "up_w", "down_w"))
def mlp(
    hidden: Tensor,
    gate_w: Weight,
    up_w: Weight,
    down_w: Weight,
    eps: float = 1e-6,
    ln_w: Tensor | None = None,
    skip_gate: bool = False,
    act_fn: ActFnType = ActFnType.SiLU,
    gate_b: Tensor | None = None,
    up_b: Tensor | None = None,
    down_b: Tensor | None = None,
    norm_b: Tensor | None = None,
    norm_type: NormType = NormType.NO_NORM,
    fused_add_tensor: Tensor | None = None,
    store_fused_add_result: bool = False,
    quantization_type: QuantizationType = QuantizationType.NONE,
    gate_w_scale: Tensor | None = None,
    up_w_scale: Tensor | None = None,
    down_w_scale: Tensor | None = None,
    gate_up_in_scale: Tensor | None = None,
    down_in_scale: Tensor | None = None,
    quant_clipping_bound: float = 0.0,
    output_dtype: torch.dtype | None = None,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    gate_up_w_layout: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """norm(hidden + fused_add_tensor) through a gated MLP. Source: the plugin's contract, `mlp`.

    y = (act(clamp(x @ gate_w + gate_b)) * clamp(x @ up_w + up_b)) @ down_w + down_b; with
    `skip_gate` act(x @ up_w + up_b) @ down_w + down_b, and gate_w is not looked at. Everything in
    the dtype of hidden.

    Args:
        hidden: [T, H].
        gate_w, up_w: [H, I], tensors or hosted weights. Gate is the half that is activated.
        down_w: [I, H], tensor or hosted weight.
        ln_w, norm_b: [1, H]; `norm_b` for LAYER_NORM only.
        act_fn: SiLU, GELU (erf), GELU_Tanh_Approx; Swish is SiLU in this function's torch path.
        gate_b, up_b: [1, I]; down_b: [1, H].
        fused_add_tensor: [T, H], added to hidden before the norm.

    Returns:
        [T, H]; with `store_fused_add_result` the pair (that, hidden + fused_add_tensor).

    Raises:
        ValueError: hidden not [T, H], a wrong shape, or an argument that would have no effect.
        NotImplementedError: quantization, scales, another output dtype, a weight layout, clamps
        without gate.
    """
    scales = {
        "gate_w_scale": gate_w_scale,
        "up_w_scale": up_w_scale,
        "down_w_scale": down_w_scale,
        "gate_up_in_scale": gate_up_in_scale,
        "down_in_scale": down_in_scale,
    }
    clamps = {
        "gate_clamp_upper_limit": gate_clamp_upper_limit,
        "gate_clamp_lower_limit": gate_clamp_lower_limit,
        "up_clamp_upper_limit": up_clamp_upper_limit,
        "up_clamp_lower_limit": up_clamp_lower_limit,
    }
    _check(
        hidden, gate_w, up_w, skip_gate, gate_b, fused_add_tensor, store_fused_add_result, clamps
    )
    _refuse_unsupported(
        hidden, quantization_type, scales, quant_clipping_bound, output_dtype, gate_up_w_layout
    )
    _check_biases(up_w, down_w, gate_b, up_b, down_b)
    checks.member("mlp", "act_fn", act_fn, ActFnType)
    width = hidden.shape[-1]
    check_norm("mlp", norm_type, width, ln_w, norm_b, "ln_w norm_b")

    total = hidden if fused_add_tensor is None else hidden + fused_add_tensor
    x = hidden_norm(total, norm_type, ln_w, norm_b, eps, width)
    if skip_gate:
        inner = _activation(linear(x, up_w, up_b), act_fn)
    else:
        inner = _inside(x, gate_w, gate_b, up_w, up_b, act_fn, clamps)
    check_weight("mlp", "down_w", down_w, inner.shape[-1])
    y = linear(inner, down_w, down_b)
    return (y, total) if store_fused_add_result else y
