"""`NkiTensor`: a strided view of storage, as kernels see it. Views are free and share storage.

Reading and writing values, with their checks, is in access.py; this file only moves shapes, strides
and offsets, in elements of the view's data type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import numpy as np

from tests.nki_sim.dtypes import NUMPY, dtype_name
from tests.nki_sim.errors import demand, refuse
from tests.nki_sim.layout import DynSlice, Indirect, extent, reshaped, row_major
from tests.nki_sim.registers import Register, plain
from tests.nki_sim.storage import Region, Storage


class NkiTensor:
    """Args: shape, strides and offset in elements of `dtype`; `indirect` for gathers and scatters."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: str,
        storage: Storage,
        name: str = "",
        strides: Sequence[int] | None = None,
        offset: int = 0,
        indirect: Indirect | None = None,
    ) -> None:
        self.shape = tuple(int(n) for n in shape)
        self.dtype = dtype
        self.storage = storage
        self.name = name
        self.strides = row_major(self.shape) if strides is None else tuple(int(n) for n in strides)
        self.offset = int(offset)
        self.indirect = indirect

    @property
    def buffer(self) -> Region:
        return self.storage.region

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def on_chip(self) -> bool:
        return self.storage.region.on_chip

    @property
    def itemsize(self) -> int:
        return NUMPY[self.dtype].itemsize

    def __repr__(self) -> str:
        label = self.name or "tensor"
        return f"{label} {list(self.shape)} {self.dtype} in {self.buffer.value}"

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        refuse("assignment", f"{self}[...] = ...")

    def __iter__(self) -> NoReturn:
        refuse("argument", f"{self} is iterated over; index it instead")

    def __bool__(self) -> NoReturn:
        refuse("argument", f"the truth of {self} is asked; its values are not known to the program")

    def _view(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int | None = None,
        indirect: Indirect | None = None,
    ) -> NkiTensor:
        twice = indirect is not None and self.indirect is not None
        demand(not twice, "access-pattern", f"a second run-time index into {self}")
        return NkiTensor(
            shape,
            self.dtype,
            self.storage,
            self.name,
            strides,
            self.offset if offset is None else offset,
            indirect or self.indirect,
        )

    # -- indexing

    def __getitem__(self, key: Any) -> NkiTensor:
        keys = self._full_key(key if isinstance(key, tuple) else (key,))
        shape: list[int] = []
        strides: list[int] = []
        offset, dropped = self.offset, 1
        for axis, entry in enumerate(keys):
            size, step = self.shape[axis], self.strides[axis]
            if isinstance(entry, (slice, DynSlice)):
                found = extent(entry, size)
                if found is None:
                    refuse("out-of-bounds", f"{entry} on axis {axis} of {self}")
                start, count, by = found
                offset += start * step
                shape.append(count)
                strides.append(step * by)
                continue
            index = plain(entry)
            demand(
                -size <= index < size, "out-of-bounds", f"index {index} on axis {axis} of {self}"
            )
            offset += (index % size) * step
            if self.on_chip and axis == 0:  # the partition axis stays
                shape.append(1)
                strides.append(step)
            else:
                dropped = step
        while self.on_chip and len(shape) < 2:
            shape.append(1)
            strides.append(dropped)
        if not shape:
            shape, strides = [1], [1]
        return self._view(shape, strides, offset)

    def _full_key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """`key` with `...` spelled out and missing axes taken whole."""
        spelled = sum(k is not Ellipsis for k in key)
        demand(spelled <= self.ndim, "out-of-bounds", f"{spelled} indices into {self}")
        rest = (slice(None),) * (self.ndim - spelled)
        for at, entry in enumerate(key):
            if entry is Ellipsis:
                return (*key[:at], *rest, *key[at + 1 :])
        return (*key, *rest)

    def slice(self, dim: int, start: Any, end: Any, step: int = 1) -> NkiTensor:
        return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One entry of an axis; a tensor or register as index makes it a run-time one."""
        if isinstance(index, (NkiTensor, Register)):
            demand(not (self.on_chip and dim == 0), "partition-view", f"select(0) of {self}")
            shape = self.shape[:dim] + self.shape[dim + 1 :]
            strides = self.strides[:dim] + self.strides[dim + 1 :]
            return self._view(shape, strides, None, Indirect(index, self.strides[dim], False))
        return self[(slice(None),) * (dim % self.ndim) + (index,)]

    # -- views by shape

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        demand(sorted(dims) == list(range(self.ndim)), "view-shape", f"permute({dims}) of {self}")
        demand(not self.on_chip or dims[0] == 0, "partition-view", f"permute({dims}) of {self}")
        return self._view([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        demand(self.shape[dim] == 1, "view-shape", f"broadcast of axis {dim} of {self}")
        demand(not (self.on_chip and dim == 0), "partition-view", f"broadcast(0) of {self}")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._view(shape, strides)

    def expand_dim(self, dim: int) -> NkiTensor:
        demand(not (self.on_chip and dim == 0), "partition-view", f"expand_dim(0) of {self}")
        shape, strides = list(self.shape), list(self.strides)
        step = 1 if dim >= self.ndim else strides[dim] * shape[dim]
        shape.insert(dim, 1)
        strides.insert(dim, step)
        return self._view(shape, strides)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        demand(self.shape[dim] == 1, "view-shape", f"squeeze_dim({dim}) of {self}")
        demand(not (self.on_chip and dim == 0), "partition-view", f"squeeze_dim(0) of {self}")
        demand(not self.on_chip or self.ndim > 2, "on-chip-rank", f"squeeze_dim of {self}")
        shape = self.shape[:dim] + self.shape[dim + 1 :]
        return self._view(shape, self.strides[:dim] + self.strides[dim + 1 :])

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        parts = list(shape)
        if -1 in parts:
            known = -int(np.prod(parts))
            parts[parts.index(-1)] = self.shape[dim] // known
        same = int(np.prod(parts)) == self.shape[dim]
        demand(same, "view-shape", f"reshape_dim({dim}, {tuple(shape)}) of {self}")
        demand(not (self.on_chip and dim == 0), "partition-view", f"reshape_dim(0) of {self}")
        steps = [n * self.strides[dim] for n in row_major(parts)]
        return self._view(
            [*self.shape[:dim], *parts, *self.shape[dim + 1 :]],
            [*self.strides[:dim], *steps, *self.strides[dim + 1 :]],
        )

    def flatten_dims(self, start: int, end: int) -> NkiTensor:
        """Axes `start` to `end`, both included, as one."""
        demand(not (self.on_chip and start == 0), "partition-view", f"flatten_dims(0) of {self}")
        for at in range(start, end):
            dense = self.strides[at] == self.strides[at + 1] * self.shape[at + 1]
            demand(dense or self.shape[at] == 1, "view-shape", f"flatten_dims of {self}: gaps")
        size = int(np.prod(self.shape[start : end + 1]))
        return self._view(
            [*self.shape[:start], size, *self.shape[end + 1 :]],
            [*self.strides[:start], self.strides[end], *self.strides[end + 1 :]],
        )

    def reshape(self, *shape: Any) -> NkiTensor:
        new = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        same = int(np.prod(new)) == self.size
        demand(same, "view-shape", f"reshape of {self} to {tuple(new)}")
        keeps = not self.on_chip or (len(new) > 1 and new[0] == self.shape[0])
        demand(keeps, "partition-view", f"reshape of {self} to {tuple(new)}")
        strides = reshaped(self.shape, self.strides, new)
        if strides is None:
            refuse("view-shape", f"reshape of {self} to {tuple(new)} would need a copy")
        return self._view(new, strides)

    def view(self, dtype: Any) -> NkiTensor:
        """The same bits as another type; the last axis grows or shrinks with the type's size."""
        name = dtype_name(dtype)
        old, new = self.itemsize, NUMPY[name].itemsize
        if old == new:
            shape, strides, offset = self.shape, self.strides, self.offset
        else:
            last = self.shape[-1] * old
            fits = self.strides[-1] == 1 and last % new == 0 and self.offset * old % new == 0
            even = all(s * old % new == 0 for s in self.strides[:-1])
            demand(fits and even, "view-shape", f"view of {self} as {name}")
            shape = (*self.shape[:-1], last // new)
            strides = (*(s * old // new for s in self.strides[:-1]), 1)
            offset = self.offset * old // new
        return NkiTensor(shape, name, self.storage, self.name, strides, offset, self.indirect)

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: Any = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """The raw access pattern [[stride, count], ...] over the storage, in elements of `dtype`."""
        name = self.dtype if dtype is None else dtype_name(dtype)
        size = NUMPY[name].itemsize
        start = 0 if offset is None else plain(offset)
        # The documents differ on whether a view's own offset counts here: so it has to be none.
        demand(self.offset == 0, "access-pattern", f"ap of {self}, a view from {self.offset} on")
        if self.on_chip:
            per = self.storage.partition_bytes // size
            first = pattern[0][0]
            demand(
                len(pattern) > 1 and (first == per or pattern[0][1] == 1),
                "access-pattern",
                f"ap({pattern}) of {self}: the first stride is {first}, a partition has {per}",
            )
        indirect = None
        if scalar_offset is not None:
            indirect = Indirect(scalar_offset, self.strides[indirect_dim], False)
        elif vector_offset is not None:
            demand(not self.on_chip, "operand-place", f"vector_offset into {self}")
            indirect = Indirect(vector_offset, self.strides[indirect_dim], True)
        return NkiTensor(
            [int(count) for _, count in pattern],
            name,
            self.storage,
            self.name,
            [int(stride) for stride, _ in pattern],
            start,
            indirect,
        )

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Rows of axis 0 of an HBM tensor, one for each index in `vector_offset` [P, 1]."""
        demand(dim == 0 and not self.on_chip, "operand-place", f"vector_select({dim}) of {self}")
        shape = (vector_offset.shape[0], *self.shape[1:])
        return self._view(shape, self.strides, None, Indirect(vector_offset, self.strides[0], True))

    # -- questions kernels ask

    def is_contiguous(self) -> bool:
        """Whether there are no gaps; on chip the partition axis does not count."""
        first = int(self.on_chip)
        dense = zip(self.strides, row_major(self.shape), self.shape, strict=True)
        return all(step == want or n == 1 for step, want, n in list(dense)[first:])

    def is_indirect(self) -> bool:
        return self.indirect is not None

    def get_pattern(self) -> list[list[int]]:
        return [[step, size] for step, size in zip(self.strides, self.shape, strict=True)]


def as_tensor(value: Any, role: str) -> NkiTensor:
    """`value`, which must be a tensor."""
    demand(isinstance(value, NkiTensor), "operand-kind", f"{role} is {value!r}, not a tensor")
    return cast(NkiTensor, value)
