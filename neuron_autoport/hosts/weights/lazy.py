"""Tensors of a checkpoint that are read only where they are needed.

A `Lazy` knows its shape and reads any box of itself. Stacking, joining, transposing and cutting give new
ones, and a cut is pushed down to the file: a rank's shard of a stacked, transposed weight reads just its
own rows of each source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Box = tuple[tuple[int, int], ...]


class Lazy:
    """A tensor that is not read yet."""

    shape: tuple[int, ...]

    def box(self, box: Box) -> torch.Tensor:
        """Read start:end of every dimension."""
        raise NotImplementedError

    def read(self) -> torch.Tensor:
        """All of it."""
        return self.box(tuple((0, n) for n in self.shape))

    def narrow(self, dim: int, start: int, end: int) -> Lazy:
        """start:end of one dimension."""
        if start == 0 and end == self.shape[dim]:
            return self
        return Cut(self, dim % len(self.shape), start, end)


class Leaf(Lazy):
    """A tensor of the file: what safetensors' `get_slice` gives."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.shape = handle, tuple(handle.get_shape())

    def box(self, box: Box) -> torch.Tensor:
        whole = all(b == (0, n) for b, n in zip(box, self.shape, strict=True))
        if whole or not self.shape:
            tensor: torch.Tensor = self.handle[:] if self.shape else self.handle[...]
            return tensor
        cut: torch.Tensor = self.handle[tuple(slice(a, b) for a, b in box)]
        return cut


class Held:
    """A tensor with the interface of a safetensors slice."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.tensor[index]


class Whole(Lazy):
    """A tensor that had to be made in memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.shape = tensor, tuple(tensor.shape)

    def box(self, box: Box) -> torch.Tensor:
        return self.tensor[tuple(slice(a, b) for a, b in box)]


@dataclass
class Zeros(Lazy):
    """Zeros where the checkpoint has nothing."""

    shape: tuple[int, ...]

    def box(self, box: Box) -> torch.Tensor:
        return torch.zeros([b - a for a, b in box])


class Cut(Lazy):
    def __init__(self, of: Lazy, dim: int, start: int, end: int) -> None:
        if not 0 <= start <= end <= of.shape[dim]:
            raise ValueError(f"{start}:{end} of dimension {dim} of {list(of.shape)}")
        self.of, self.dim, self.start = of, dim, start
        self.shape = (*of.shape[:dim], end - start, *of.shape[dim + 1 :])

    def box(self, box: Box) -> torch.Tensor:
        a, b = box[self.dim]
        inner = (a + self.start, b + self.start)
        return self.of.box((*box[: self.dim], inner, *box[self.dim + 1 :]))


class Swap(Lazy):
    """Two dimensions exchanged."""

    def __init__(self, of: Lazy, first: int, second: int) -> None:
        self.of = of
        self.order = list(range(len(of.shape)))
        self.order[first], self.order[second] = self.order[second], self.order[first]
        self.shape = tuple(of.shape[d] for d in self.order)

    def box(self, box: Box) -> torch.Tensor:
        return self.of.box(tuple(box[d] for d in self.order)).permute(self.order)


class Join(Lazy):
    """Several along an existing dimension."""

    def __init__(self, parts: Sequence[Lazy], dim: int) -> None:
        self.parts, self.dim = tuple(parts), dim % len(parts[0].shape)
        first = parts[0].shape
        for part in parts:
            if (part.shape[: self.dim], part.shape[self.dim + 1 :]) != (
                first[: self.dim],
                first[self.dim + 1 :],
            ):
                raise ValueError(f"{list(part.shape)} does not join {list(first)} along {dim}")
        size = sum(p.shape[self.dim] for p in parts)
        self.shape = (*first[: self.dim], size, *first[self.dim + 1 :])

    def box(self, box: Box) -> torch.Tensor:
        a, b = box[self.dim]
        found, at = [], 0
        for part in self.parts:
            size = part.shape[self.dim]
            low, high = max(a - at, 0), min(b - at, size)
            if low < high:
                found.append(part.box((*box[: self.dim], (low, high), *box[self.dim + 1 :])))
            at += size
        return found[0] if len(found) == 1 else torch.cat(found, self.dim)


class Stack(Lazy):
    """Several of one shape along a new dimension."""

    def __init__(self, parts: Sequence[Lazy], dim: int) -> None:
        self.parts, self.dim = tuple(parts), dim
        first = parts[0].shape
        if any(p.shape != first for p in parts):
            raise ValueError(f"tensors of different shapes: {sorted({p.shape for p in parts})}")
        self.shape = (*first[:dim], len(parts), *first[dim:])

    def box(self, box: Box) -> torch.Tensor:
        a, b = box[self.dim]
        rest = (*box[: self.dim], *box[self.dim + 1 :])
        return torch.stack([p.box(rest) for p in self.parts[a:b]], self.dim)


class Pick(Lazy):
    """Chosen entries of the last dimension, in any order."""

    def __init__(self, of: Lazy, columns: Sequence[int]) -> None:
        self.of, self.columns = of, tuple(columns)
        self.shape = (*of.shape[:-1], len(self.columns))

    def box(self, box: Box) -> torch.Tensor:
        a, b = box[-1]
        wanted = torch.tensor(self.columns[a:b], dtype=torch.long)
        low, high = int(wanted.min()), int(wanted.max()) + 1
        return self.of.box((*box[:-1], (low, high)))[..., wanted - low]


def runs_of(columns: Iterable[int]) -> list[tuple[int, int]]:
    """(start, end) of each run of neighbours, in their order."""
    runs: list[tuple[int, int]] = []
    for column in columns:
        if runs and runs[-1][1] == column:
            runs[-1] = (runs[-1][0], column + 1)
        else:
            runs.append((column, column + 1))
    return runs


def pick(of: Lazy, columns: Sequence[int]) -> Lazy:
    """Chosen entries of the last dimension; long runs of neighbours are read as cuts."""
    runs = runs_of(columns)
    if len(runs) * 8 > len(columns):
        return Pick(of, columns)
    last = len(of.shape) - 1
    return Join([of.narrow(last, a, b) for a, b in runs], last)
