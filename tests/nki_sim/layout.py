"""Pieces of a tensor's layout: slices by extent, run-time offsets, dense strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.nki_sim.registers import plain


@dataclass(frozen=True)
class DynSlice:
    """`nl.ds(start, size)`: `size` elements from `start` on."""

    start: Any
    size: Any


@dataclass(frozen=True)
class Indirect:
    """Where a gather or scatter takes its offsets from.

    Attributes:
        source: a tensor or register with indices.
        stride: elements per index step.
        per_partition: one index for each entry of axis 0, instead of one for all.
    """

    source: Any
    stride: int
    per_partition: bool


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def extent(entry: slice | DynSlice, size: int) -> tuple[int, int, int] | None:
    """First element, count and step of a slice of an axis; None if it reaches past the axis."""
    if isinstance(entry, DynSlice):
        start, count, by = plain(entry.start), plain(entry.size), 1
        return (start, count, by) if start >= 0 and 0 <= count <= size - start else None
    start = 0 if entry.start is None else plain(entry.start)
    stop = size if entry.stop is None else plain(entry.stop)
    by = 1 if entry.step is None else plain(entry.step)
    if by < 1 or not (-size <= start <= size and -size <= stop <= size):
        return None
    start, stop = start + size * (start < 0), stop + size * (stop < 0)
    return start, max(0, -(-(stop - start) // by)), by


def reshaped(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of the same elements in shape `new`, or None if they would have to be copied."""
    probe = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), tuple(shape), tuple(strides))
    try:
        view = np.reshape(probe, tuple(new), copy=False)  # nothing is read
    except ValueError:
        return None
    return tuple(view.strides)
