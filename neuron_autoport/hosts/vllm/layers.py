"""vLLM's linear layers as weights of NF calls.

The layer stays a submodule under its own name, so vLLM's loaders, quantization and LoRA find and replace
it; the weight attribute the rewritten forward reads holds the owner and the name, and looks the layer
up at every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neuron_autoport.nf.enums import ActFnType

# A layer's own way to make act(first half) * second half, set after loading. Private, because what wraps a layer to add
# to its output, as LoRA does, has the layer's public names, too.
GATED = "_gated_linear"
IS_GATED = "is_gated"  # of a layer whose halves are gate and up of one MLP


class LayerWeight:
    """A whole layer as weight: x [..., in] -> [..., out]. The layer adds bias and reduces itself."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        self.owner, self.name = owner, name

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if bias is not None:
            raise ValueError(f"the layer {self.name} adds its own bias")
        return getattr(self.owner, self.name)(x)


class LayerHalf:
    """One of two equal halves of a merged layer's output, the first or the second."""

    def __init__(self, owner: nn.Module, name: str, second: bool) -> None:
        self.owner, self.name, self.second = owner, name, second

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        halves = getattr(self.owner, self.name)(x).chunk(2, dim=-1)
        return halves[1] if self.second else halves[0]

    def pair_linear(self, x: torch.Tensor, other: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Both halves from one run, if `other` is the other half of the same layer."""
        if not isinstance(other, LayerHalf) or other.name != self.name:
            return None
        first, second = getattr(self.owner, self.name)(x).chunk(2, dim=-1)
        return (second, first) if self.second else (first, second)

    def gated_linear(self, x: torch.Tensor, up: Any, act_fn: ActFnType) -> torch.Tensor | None:
        """act(first half) * second half from one run, if the layer has such a run and `up` is its second half."""
        if not isinstance(up, LayerHalf) or up.name != self.name or self.second or not up.second:
            return None
        run = getattr(getattr(self.owner, self.name), GATED, None)
        made: torch.Tensor | None = None if run is None else run(x, act_fn)
        return made


def load_arranged(layer: Any, columns: list[int] | None, *, transposed: bool) -> None:
    """Let a layer take checkpoint weights of another arrangement: brought into its own while loading.

    Args:
        columns: of the checkpoint's output, in the layer's order; None if they are alike.
        transposed: does the checkpoint keep the weight [in, out]?
    """
    _load_through(layer.weight, lambda w: _rows(w.t() if transposed else w, columns))
    if columns is not None and layer.bias is not None:
        _load_through(layer.bias, lambda b: _rows(b, columns))


def _rows(loaded: torch.Tensor, columns: list[int] | None) -> torch.Tensor:
    return loaded if columns is None else loaded[columns]


def _load_through(parameter: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    original: Callable[..., Any] = parameter.weight_loader

    def load(param: torch.Tensor, loaded: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(param, change(loaded), *args, **kwargs)

    if hasattr(parameter, "_weight_loader"):
        parameter._weight_loader = load
    else:
        parameter.weight_loader = load
