"""The experts of `moe_cte` and `moe_block_tkg` in torch: every expert on every token, weighted.

    y = sum over e of w[:, e] * (act(clamp(x @ W_gate[e] + b)) * clamp(x @ W_up[e] + b)) @ W_down[e] + b

Products are in the dtype of x, the sum over experts in float32. More work than choosing rows, but no shape
depends on a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_autoport.nf import checks
from neuron_autoport.nf.enums import ActFnType, ExpertAffinityScaleMode

SWISH = 1.702  # in the functions for experts Swish is x * sigmoid(1.702 x)


@dataclass(frozen=True)
class Between:
    """What stands between the two products: the activation, and limits of gate and up before it."""

    activation: ActFnType = ActFnType.SiLU
    gate_low: float | None = None
    gate_high: float | None = None
    up_low: float | None = None
    up_high: float | None = None

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """act(clamp(gate)) * clamp(up)."""
        gate = _clamp(gate, self.gate_low, self.gate_high)
        return _activation(gate, self.activation) * _clamp(up, self.up_low, self.up_high)


def _clamp(x: Tensor, low: float | None, high: float | None) -> Tensor:
    return x if low is None and high is None else torch.clamp(x, low, high)


def _activation(x: Tensor, kind: ActFnType) -> Tensor:
    if kind == ActFnType.Swish:
        return x * torch.sigmoid(x * SWISH)
    return F.gelu(x) if kind == ActFnType.GELU else F.silu(x)


def check_experts(
    function: str,
    hidden: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    activation: ActFnType,
) -> None:
    """Refuse weights that do not fit each other or the rows.

    Args:
        hidden: [..., H]. gate_up: [E, H, 2, I], gate first. down: [E, I, H]. gate_up_bias: [E, 2, I].

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    width = hidden.shape[-1]
    if gate_up.dim() != 4 or gate_up.shape[1] != width or gate_up.shape[2] != 2:
        raise ValueError(
            f"NF.{function}: the gate/up weight must be [E, {width}, 2, I], got {tuple(gate_up.shape)}"
        )
    experts, _, _, inner = gate_up.shape
    if tuple(down.shape) != (experts, inner, width):
        raise ValueError(
            f"NF.{function}: the down weight must be [{experts}, {inner}, {width}], "
            f"got {tuple(down.shape)}"
        )
    check_bias(function, "the gate/up bias", gate_up_bias, (experts, 2, inner))
    checks.member(function, "activation", activation, ActFnType)
    if activation == ActFnType.GELU_Tanh_Approx:
        raise NotImplementedError(f"NF.{function}: no GELU_Tanh_Approx between experts' products")


def check_bias(function: str, name: str, bias: Tensor | None, shape: tuple[int, ...]) -> None:
    """Refuse a bias of another shape.

    Raises:
        ValueError: naming it.
    """
    if bias is not None and tuple(bias.shape) != shape:
        raise ValueError(f"NF.{function}: {name} must be {list(shape)}, got {tuple(bias.shape)}")


def experts_sum(
    x: Tensor,
    affinities: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    between: Between,
    mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
) -> Tensor:
    """The weighted sum of all experts, float32 [T, H].

    Args:
        x: [T, H]. affinities: [T, E], zero where a token did not choose. gate_up: [E, H, 2, I].
        down: [E, I, H]. gate_up_bias: [E, 2, I]. down_bias: [E, H].
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(gate_up.shape[0]):
        share = affinities[:, expert, None]
        rows = (x * share).to(x.dtype) if mode == ExpertAffinityScaleMode.PRE_SCALE else x
        gate, up = rows @ gate_up[expert, :, 0], rows @ gate_up[expert, :, 1]
        if gate_up_bias is not None:
            gate, up = gate + gate_up_bias[expert, 0], up + gate_up_bias[expert, 1]
        inner = between(gate, up)
        if mode == ExpertAffinityScaleMode.PRE_SCALE_DELAYED:
            inner = (inner * share).to(x.dtype)
        y = inner @ down[expert]
        if down_bias is not None:
            y = y + down_bias[expert]
        total = total + (y * share if mode == ExpertAffinityScaleMode.POST_SCALE else y)
    return total
