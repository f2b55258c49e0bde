"""How each parameter of the hosted model is made of Hugging Face tensors, for one rank.

A recipe joins parts: columns of a tensor, transposed where the model keeps [out, in], cut to the rank's
share. Key/value heads are repeated when there are more ranks than heads. A bias of a row-parallel product
is divided by the ranks, because the sum over the ranks adds it once from each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from neuron_autoport.hosts.weights.lazy import Lazy, Swap, Zeros, pick


@dataclass(frozen=True)
class Share:
    """A rank's part of one dimension. replicas: neighbouring ranks that have the same part."""

    dim: int
    size: int
    replicas: int = 1

    def start(self, rank: int) -> int:
        return rank // self.replicas * self.size


@dataclass(frozen=True)
class Part:
    """Columns of a tensor, in their order; all of it where columns is None.

    name: of the Hugging Face tensor; None for zeros. transpose: it is kept [..., out, in] and wanted
    [..., in, out]. cut: (dimension, start, end) taken before the rank's share. plus: added to it.
    """

    name: str | None
    transpose: bool = False
    columns: Sequence[int] | None = None
    share: Share | None = None
    cut: tuple[int, int, int] | None = None
    plus: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """One parameter: its parts side by side along dim, or, stacked, along a new dimension there.

    row: a bias that becomes [1, n]. scale: factor.
    """

    parts: tuple[Part, ...]
    row: bool = False
    scale: float = 1.0
    dim: int = -1
    stacked: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The Hugging Face tensors it reads, each once."""
        return tuple(dict.fromkeys(p.name for p in self.parts if p.name is not None))

    def make(self, tensors: Mapping[str, Lazy], rank: int) -> torch.Tensor:
        """The rank's tensor."""
        found = [_part(part, tensors, rank) for part in self.parts]
        if self.stacked:
            tensor = torch.stack(found, self.dim)
        else:
            tensor = found[0] if len(found) == 1 else torch.cat(found, self.dim)
        if self.row:
            tensor = tensor[None]
        return tensor if self.scale == 1.0 else tensor * self.scale


def whole(name: str) -> Recipe:
    """The tensor as it is."""
    return Recipe((Part(name),))


def _part(part: Part, tensors: Mapping[str, Lazy], rank: int) -> torch.Tensor:
    if part.name is None:
        assert part.columns is not None
        lazy: Lazy = Zeros((len(part.columns),))
    else:
        lazy = tensors[part.name]
        if part.transpose:
            last = len(lazy.shape) - 1
            lazy = Swap(lazy, last - 1, last)
        if part.columns is not None:
            lazy = pick(lazy, part.columns)
    if part.cut is not None:
        lazy = lazy.narrow(*part.cut)
    tensor = _shared(lazy, part.share, rank)
    return tensor + part.plus if part.plus else tensor


def _shared(lazy: Lazy, share: Share | None, rank: int) -> torch.Tensor:
    """The rank's part of a tensor; zeros where it goes past the end."""
    if share is None:
        return lazy.read()
    start = share.start(rank)
    size = lazy.shape[share.dim]
    low, high = min(start, size), min(start + share.size, size)
    tensor = lazy.narrow(share.dim, low, high).read()
    missing = share.size - (high - low)
    if missing:  # the last ranks of a vocabulary that does not divide
        shape = list(tensor.shape)
        shape[share.dim] = missing
        tensor = torch.cat([tensor, tensor.new_zeros(shape)], share.dim)
    return tensor
