"""A window: the bytes a tensor stands for, applied to any array that has one entry per byte."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nki_sim.dtypes import Array


class Window:
    """Bytes at strides, or at listed places.

    Args:
        shape: elements per axis.
        strides: bytes from one element to the next, per axis.
        offset: first byte.
        itemsize: bytes per element.
        index: for gathers and scatters, the first byte of every element instead.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        itemsize: int,
        index: Array | None = None,
    ) -> None:
        self.index: Array | None = None
        if index is not None:
            self.index = index[..., None] + np.arange(itemsize)
            return
        self.offset = offset
        if shape and strides[-1] == itemsize:  # one run of bytes instead of many short ones
            self.shape = (*shape[:-1], shape[-1] * itemsize)
            self.strides = (*strides[:-1], 1)
        else:
            self.shape, self.strides = (*shape, itemsize), (*strides, 1)

    def get(self, entries: Array) -> Array:
        """The entries of the window: a view if they lie at strides, else a copy."""
        if self.index is not None:
            return entries[self.index]
        size = entries.itemsize
        return np.lib.stride_tricks.as_strided(
            entries[self.offset :], self.shape, [s * size for s in self.strides]
        )

    def set(self, entries: Array, value: Any) -> None:
        """Set all entries of the window."""
        if self.index is not None:
            entries[self.index] = value
        else:
            self.get(entries)[...] = value
