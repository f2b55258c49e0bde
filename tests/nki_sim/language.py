"""`nki.language` of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.nki_sim import machine
from tests.nki_sim.access import read, values, write
from tests.nki_sim.dtypes import NUMPY, dtype_name
from tests.nki_sim.errors import demand, refuse
from tests.nki_sim.hardware import TileSize
from tests.nki_sim.layout import DynSlice
from tests.nki_sim.objects import NKIObject
from tests.nki_sim.operators import OPERATORS
from tests.nki_sim.registers import Register, plain
from tests.nki_sim.storage import Region, Storage
from tests.nki_sim.tensor import NkiTensor

__all__ = ["NKIObject", "NkiTensor"]

sbuf, psum = Region.sbuf, Region.psum
shared_hbm = Region.shared_hbm
private_hbm = hbm = Region.private_hbm
tile_size = TileSize()
tensor = NkiTensor
MemoryRegion = Region


def ndarray(
    shape: Any, dtype: Any = None, buffer: Any = sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """Uninitialised storage; `address` (partition, byte) puts it where the kernel wants it."""
    demand(isinstance(buffer, Region), "argument", f"buffer {buffer!r}")
    demand(dtype is not None, "argument", "ndarray without a dtype")
    return machine.allocate(shape, dtype, buffer, name, address)


def zeros(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    made = ndarray(shape, dtype, buffer, name)
    write(made, np.zeros(made.shape, np.float32))
    return made


def ds(start: Any, size: Any) -> DynSlice:
    """`size` elements from `start` on, as an index."""
    return DynSlice(start, size)


def _range(start: Any, stop: Any = None, step: Any = 1) -> range:
    if stop is None:
        return range(plain(start))
    return range(plain(start), plain(stop), plain(step))


affine_range = sequential_range = static_range = _range


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Register], Any], step: int = 1) -> None:
    """A loop at run time: `body_fun` gets the index as a register."""
    demand(isinstance(step, int) and step > 0, "argument", f"fori_loop with step {step!r}")
    for index in range(plain(lower), plain(upper), step):
        body_fun(Register(index))


def while_loop(init: Register, body_fun: Callable[[Register], Register]) -> None:
    """A loop at run time while a register is not 0; the body returns the next one."""
    state = init
    while plain(state) != 0:
        state = body_fun(Register(state.value))


def program_id(axis: int = 0) -> int:
    """The number of the core."""
    demand(axis == 0, "launch", f"program_id({axis})")
    return machine.core().number


def num_programs(axes: int = 0) -> int:
    """How many cores the kernel runs on."""
    demand(axes == 0, "launch", f"num_programs({axes})")
    return len(machine.core().launch.cores)


def program_ndim() -> int:
    """0 on one core, 1 on two."""
    return int(len(machine.core().launch.cores) > 1)


def device_print(prefix: str, tensor: NkiTensor) -> None:
    print(prefix, values(tensor))


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: Any = None) -> NkiTensor:
    """An identity matrix in SBUF."""
    made = dst if dst is not None else ndarray((n, n), dtype)
    write(made, np.eye(n, dtype=np.float32))
    return made


def shared_constant(array: Any) -> NkiTensor:
    """A constant in HBM."""
    data = np.ascontiguousarray(array)
    name = dtype_name(data.dtype)
    raw = data.reshape(-1).view(np.uint8).copy()
    return NkiTensor(data.shape, name, Storage.of_bytes(raw, name, data.shape), "constant")


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    made = ndarray(src.shape, dtype or src.dtype)
    write(made, read(src))
    return made


def store(dst: NkiTensor, value: NkiTensor) -> None:
    demand(dst.size == value.size, "dma-shape", f"store of {value} into {dst}")
    write(dst, read(value))


def __getattr__(name: str) -> Any:
    if name == "bool":
        return "bool_"
    if name in NUMPY:
        return name
    if name in OPERATORS:
        return OPERATORS[name]
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        refuse("not-simulated", f"nl.{name}")

    return missing
