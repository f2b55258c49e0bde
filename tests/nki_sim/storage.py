"""Storage: bytes somewhere on the device, and what is known of each of them.

Fresh storage is NaN (integers: 4), as in the vendor's simulator, and marked unwritten. Shared HBM also
keeps, for each core, when a byte was last read and written; from that follow races (`note`).
"""

from __future__ import annotations

import weakref
from enum import Enum
from typing import Protocol

import numpy as np

from tests.nki_sim.dtypes import NUMPY, Array, is_integer
from tests.nki_sim.errors import refuse
from tests.nki_sim.hardware import PSUM_BANK_BYTES
from tests.nki_sim.window import Window


class Region(Enum):
    """Where a tensor lives. Kernels see the members as nl.sbuf, nl.psum, ..."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    @property
    def on_chip(self) -> bool:
        return self in (Region.sbuf, Region.psum)


class Budget(Protocol):
    """What counts the live on-chip bytes of a core."""

    def take(self, region: Region, partition_bytes: int) -> None: ...
    def give(self, region: Region, partition_bytes: int) -> None: ...


class Marks:
    """Bytes that one core touched, marked only when the other one comes near them."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._mask: Array | None = None

    def touch(self, at: Window, size: int) -> bool:
        """Whether any of the bytes `at` is among them; `size` is that of the storage."""
        if self._mask is None:
            self._mask = np.zeros(size, dtype=bool)
        for window in self.windows:
            window.set(self._mask, True)
        self.windows.clear()
        return bool(at.get(self._mask).any())


class Storage:
    """`size` elements of type `dtype` in `region`, as bytes.

    Attributes:
        data: the bytes.
        written: per byte, whether it was ever written; None if all of it is (arguments).
        matmul: PSUM only; per byte, what the last instruction on it was: see `MATMUL_*`.
        partition_size: elements per partition, as allocated.
    """

    NOT_MATMUL, MATMUL, MATMUL_READ = 0, 1, 2

    def __init__(self, shape: tuple[int, ...], dtype: str, region: Region) -> None:
        kind = NUMPY[dtype]
        size = int(np.prod(shape))
        filled = np.full(size, 4 if is_integer(dtype) else np.nan, dtype=kind)
        self.data: Array = filled.view(np.uint8)
        self.written: Array | None = np.zeros(size * kind.itemsize, dtype=bool)
        self.region = region
        self.dtype = dtype
        self.partition_size = size // max(1, shape[0])
        self.matmul: Array | None = None
        if region is Region.psum:
            self.matmul = np.zeros(size * kind.itemsize, dtype=np.uint8)
        self._clocks: dict[int, int] = {}
        self._touched: dict[tuple[str, int, int], Marks] = {}

    @classmethod
    def of_bytes(cls, data: Array, dtype: str, shape: tuple[int, ...]) -> Storage:
        """Storage over an argument's own bytes: in shared HBM, all written."""
        self = cls((0,), dtype, Region.shared_hbm)
        self.data, self.written = data, None
        self.partition_size = int(np.prod(shape[1:]))
        return self

    @property
    def partition_bytes(self) -> int:
        return self.partition_size * NUMPY[self.dtype].itemsize

    def charge(self, budget: Budget) -> None:
        """Count this storage against a core's on-chip memory until nothing refers to it any more."""
        size = self.partition_bytes
        if self.region is Region.psum:  # a tile has its banks to itself
            size = -(-size // PSUM_BANK_BYTES) * PSUM_BANK_BYTES
        budget.take(self.region, size)
        weakref.finalize(self, budget.give, self.region, size)

    def passed_barrier(self, core: int) -> None:
        """Core `core` waited for the other one on this storage."""
        self._clocks[core] = self._clocks.get(core, 0) + 1

    def note(self, core: int, others: list[int], at: Window, writes: bool, name: str) -> None:
        """Record that `core` reads or writes the bytes `at`; refuse a race with another core.

        Two accesses of different cores race if one of them writes and no barrier on this storage lies
        between them.
        """
        clock = self._clocks.get(core, 0)
        for other in others:
            for verb in ("wrote", "read") if writes else ("wrote",):
                marks = self._touched.get((verb, other, clock))
                if marks is not None and marks.touch(at, self.data.size):
                    refuse(
                        "core-race",
                        f"core {core} {'writes' if writes else 'reads'} bytes of {name} that core "
                        f"{other} {verb} without a barrier in between",
                    )
        own = self._touched.setdefault(("wrote" if writes else "read", core, clock), Marks())
        own.windows.append(at)
