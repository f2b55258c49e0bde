"""The gate of a gated MLP on its own: act(gate) * up, with every rounding eager torch makes.

For MLPs whose projections stay with the host (quantized, LoRA, experts), where the fused MLP of NF cannot
be used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_autoport.kernels.dispatch import nk_function
from neuron_autoport.kernels.limits import Limit
from neuron_autoport.kernels.norms import FLOATS

KINDS = ("silu", "gelu", "gelu_tanh", "relu2", "clamped_swiglu")
ALPHA = 1.702  # gpt-oss: gate * sigmoid(1.702 * gate)


@nk_function(
    summary="activation of the gate times up: silu, gelu, gelu_tanh, relu2, clamped SwiGLU",
    equation="act(gate) * up",
    phases=("prefill", "decode"),
    limits=(
        Limit("gate.dtype", "the engines have no other floating dtype", one_of=FLOATS),
        Limit("up.dtype", "gate and up are multiplied in one dtype", same_as="gate.dtype"),
        Limit("kind", "each kind is a sequence of engine instructions", one_of=KINDS),
    ),
    module="neuron_autoport.kernels.device.act_and_mul",
)
def act_and_mul(
    gate: Tensor,
    up: Tensor,
    kind: str = "silu",
    *,
    limit: float | None = None,
    alpha: float | None = None,
) -> Tensor:
    """act(gate) * up; each line of the formula is rounded to the dtype, as eager torch does.

    | kind | formula |
    |---|---|
    | silu | silu(g) * u |
    | gelu | gelu(g) * u, with erf |
    | gelu_tanh | gelu(g, approximate="tanh") * u |
    | relu2 | square(relu(g)) * u |
    | clamped_swiglu | (u + 1) * (g * sigmoid(g * alpha)), as in gpt-oss |

    Args:
        gate, up: [..., I], the same shape.
        kind: one of the above.
        limit: if given, g = min(gate, limit) and u = clamp(up, -limit, limit) first, for any kind
            (gpt-oss, DeepSeek V4).
        alpha: of clamped_swiglu only; None is 1.702.

    Returns:
        [..., I] in the dtype of gate * up.

    Raises:
        ValueError: unknown kind, alpha for another kind, a limit below zero, shapes that differ.
    """
    _check(gate, up, kind, limit, alpha)
    if limit is not None:
        gate = gate.clamp(max=limit)
        up = up.clamp(min=-limit, max=limit)
    if kind == "silu":
        return F.silu(gate) * up
    if kind == "gelu":
        return F.gelu(gate) * up
    if kind == "gelu_tanh":
        return F.gelu(gate, approximate="tanh") * up
    if kind == "relu2":
        return torch.square(F.relu(gate)) * up
    glu = gate * torch.sigmoid(gate * (ALPHA if alpha is None else alpha))
    return (up + 1) * glu


def _check(gate: Tensor, up: Tensor, kind: str, limit: float | None, alpha: float | None) -> None:
    if kind not in KINDS:
        raise ValueError(f"NK.act_and_mul: kind {kind!r} is none of {', '.join(KINDS)}")
    if alpha is not None and kind != "clamped_swiglu":
        raise ValueError(f"NK.act_and_mul: alpha is given but {kind} has none")
    if limit is not None and limit < 0:
        raise ValueError(
            f"NK.act_and_mul: limit={limit} is below zero: nothing is left to clamp to"
        )
    if gate.shape != up.shape:
        raise ValueError(
            f"NK.act_and_mul: shapes of gate {tuple(gate.shape)} and up {tuple(up.shape)} differ"
        )
