"""Weights of NF calls: a plain tensor [in, out], or a *hosted* weight that applies itself.

A host such as vLLM keeps weights in its own forms: packed, quantized, sharded, with LoRA. It then
passes, in place of the tensor, an object with `linear(x, bias)`. The host's layer adds its own bias
(the bias argument of the NF call is then None), and a row-parallel one does its own all-reduce.
Everything here traces under `torch.compile(fullgraph=True)`.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from neuron_autoport.nf.enums import ActFnType


class HostedWeight(Protocol):
    """A weight held by the host."""

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [..., in] -> [..., out], with `bias` added if it is not None."""


class PairedWeight(HostedWeight, Protocol):
    """A hosted weight that may be one half of a merged layer, such as vLLM's gate_up_proj."""

    def pair_linear(self, x: Tensor, other: Weight) -> tuple[Tensor, Tensor] | None:
        """(x @ self, x @ other) by one run of the merged layer; None: they are not its halves."""


class GatedWeight(HostedWeight, Protocol):
    """A hosted weight of a gate whose host can make the whole inside of a gated MLP in one run."""

    def gated_linear(self, x: Tensor, up: Weight, act_fn: ActFnType) -> Tensor | None:
        """act(x @ self) * (x @ up), biases added by the host; None: not of these weights, or not this activation."""


Weight: TypeAlias = Tensor | HostedWeight


def check_weight(function: str, name: str, weight: Weight, width: int) -> None:
    """Refuse what is no weight for an input `width` wide.

    Raises:
        ValueError: a tensor that is not [width, out].
        TypeError: an object without `linear`.
    """
    if isinstance(weight, Tensor):
        if weight.dim() != 2 or weight.shape[0] != width:
            raise ValueError(
                f"NF.{function}: {name} must be [in, out] with in = {width}, "
                f"got {tuple(weight.shape)}; a torch.nn.Linear weight is [out, in]: transpose it"
            )
    elif not hasattr(weight, "linear"):
        raise TypeError(
            f"NF.{function}: {name} must be a tensor or have a method linear(x, bias), "
            f"got {type(weight).__name__}"
        )


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [..., in] @ weight [in, out] + bias [1, out], in the dtype of x."""
    if not isinstance(weight, Tensor):
        return weight.linear(x, bias)
    if bias is None:
        return torch.matmul(x, weight)
    if x.dim() == 2:
        return torch.addmm(bias, x, weight)
    return torch.addmm(bias, x.flatten(0, -2), weight).view(*x.shape[:-1], weight.shape[1])


def gate_up(
    x: Tensor, gate_w: Weight, gate_b: Tensor | None, up_w: Weight, up_b: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(x @ gate + gate_b, x @ up + up_b); one run if the host keeps both as one merged layer."""
    if gate_b is None and up_b is None and not isinstance(gate_w, Tensor):
        pair_linear = getattr(gate_w, "pair_linear", None)
        pair = None if pair_linear is None else pair_linear(x, up_w)
        if pair is not None:
            gate, up = pair
            return gate, up
    return linear(x, gate_w, gate_b), linear(x, up_w, up_b)


def gated(
    x: Tensor,
    gate_w: Weight,
    gate_b: Tensor | None,
    up_w: Weight,
    up_b: Tensor | None,
    act_fn: ActFnType,
) -> Tensor | None:
    """act(x @ gate + gate_b) * (x @ up + up_b) [..., out], if the host has a way to make that in one run."""
    made = getattr(gate_w, "gated_linear", None)
    if made is None or gate_b is not None or up_b is not None:
        return None
    inner: Tensor | None = made(x, up_w, act_fn)
    return inner
