"""NF.mlp: residual add, norm, gate and up, activation, down.

The torch formula ignores quantization, scales, clamps, output_dtype and gate_up_w_layout without a
word: each of them, if given, is noted as a trap.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from tests.neuron.double import formulas as F
from tests.neuron.double.args import Args
from tests.neuron.double.log import KERNEL
from tests.neuron.double.op import Function, Made, build

IGNORED = (
    "gate_w_scale",
    "up_w_scale",
    "down_w_scale",
    "gate_up_in_scale",
    "down_in_scale",
    "output_dtype",
    "gate_clamp_upper_limit",
    "gate_clamp_lower_limit",
    "up_clamp_upper_limit",
    "up_clamp_lower_limit",
    "gate_up_w_layout",
)


def check(a: Args) -> str:
    """Shapes and dtypes; arguments the torch formula ignores; then the kernel's limits."""
    a.shape("hidden", -1, -1)
    tokens, width = a.hidden.shape
    a.shape("up_w", width, -1)
    inner = a.up_w.shape[1]
    a.need(a.gate_w is not None, "gate_w is needed even with skip_gate")
    a.shape("gate_w", width, inner)
    a.shape("down_w", inner, width)
    for name, size in (("ln_w", width), ("norm_b", width), ("down_b", width)):
        a.shape(name, 1, size, optional=True)
    for name in ("gate_b", "up_b"):
        a.shape(name, 1, inner, optional=True)
    a.shape("fused_add_tensor", tokens, width, optional=True)
    a.same_dtype(
        "hidden", "gate_w", "up_w", "down_w", "gate_b", "up_b", "down_b", "fused_add_tensor"
    )
    if a.norm_type.name in ("RMS_NORM", "LAYER_NORM"):
        a.need(
            a.ln_w is not None, f"{a.norm_type.name} needs ln_w (the torch formula fails on None)"
        )
    else:
        a.need(a.ln_w is None, f"ln_w with norm_type {a.norm_type.name} is not used")
    a.need(a.norm_b is None or a.norm_type.name == "LAYER_NORM", "norm_b needs LAYER_NORM")
    if a.store_fused_add_result:
        a.need(a.fused_add_tensor is not None, "store_fused_add_result needs fused_add_tensor")
    ignored = a.given(IGNORED)
    if a.quantization_type.name != "NONE":
        ignored.append("quantization_type")
    if ignored:
        a.trap(f"the torch formula ignores {', '.join(ignored)}")
    return _limits(a, tokens, width, inner)


def _limits(a: Args, tokens: int, width: int, inner: int) -> str:
    if width % 128 != 0:
        return f"torch: H = {width} is no multiple of 128"
    if tokens <= 128:
        return KERNEL if width % 256 == 0 else f"torch: T <= 128 and H = {width} % 256 != 0"
    biased = bool(a.given(["gate_b", "up_b", "down_b"]))
    wide = width >= 7168 and inner >= 1024 and tokens <= 256 and not biased
    parts = math.ceil((inner / 2 if wide else inner) / 512)
    return (
        KERNEL if parts <= 8 else f"torch: I = {inner} per rank is above {8192 if wide else 4096}"
    )


def compute(a: Args) -> list[Tensor]:
    """The MLP's output, and hidden + fused_add if it is asked for."""
    dtype = a.hidden.dtype
    x = F.up(a.hidden)
    if a.fused_add_tensor is not None:
        x = F.rounded(x + F.up(a.fused_add_tensor), dtype)
    total = x
    x = F.rounded(F.hidden_norm(x, a.norm_type, a.eps, a.ln_w, a.norm_b, None), dtype)
    up = _linear(x, a.up_w, a.up_b, dtype)
    if a.skip_gate:
        inner = F.rounded(F.activate(up, a.act_fn), dtype)
    else:
        gate = F.rounded(F.activate(_linear(x, a.gate_w, a.gate_b, dtype), a.act_fn), dtype)
        inner = F.rounded(gate * up, dtype)
    y = _linear(inner, a.down_w, a.down_b, dtype).to(dtype)
    return [y, total.to(dtype)] if a.store_fused_add_result else [y]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: Any) -> Tensor:
    y = x @ F.up(weight)
    return F.rounded(y if bias is None else y + F.up(bias), dtype)


def shapes(a: Args) -> Made:
    """[T, H], once or twice."""
    made = (tuple(a.hidden.shape), a.hidden.dtype)
    return [made, made] if a.store_fused_add_result else [made]


def result(args: dict[str, Any], outputs: list[Tensor]) -> Any:
    """The output, or (output, hidden + fused_add)."""
    return (outputs[0], outputs[1]) if args["store_fused_add_result"] else outputs[0]


mlp = build(Function("mlp", check, shapes, compute, result))
