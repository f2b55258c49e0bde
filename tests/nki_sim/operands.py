"""What instructions have in common: checked operands in, float32 or integer arrays out.

Arrays are [P, F]: partitions by all free elements in a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tests.nki_sim import machine
from tests.nki_sim.access import read, write
from tests.nki_sim.dtypes import F32, Array, is_integer
from tests.nki_sim.enums import engine as engines
from tests.nki_sim.errors import demand
from tests.nki_sim.hardware import MAX_RANK, PARTITIONS, QUADRANT
from tests.nki_sim.operators import Operator
from tests.nki_sim.registers import Register, plain
from tests.nki_sim.storage import Region
from tests.nki_sim.tensor import NkiTensor, as_tensor

P = ParamSpec("P")
R = TypeVar("R")

SBUF = (Region.sbuf,)
PSUM = (Region.psum,)
ON_CHIP = (Region.sbuf, Region.psum)
REACH = {0: PARTITIONS, QUADRANT: QUADRANT, 2 * QUADRANT: 2 * QUADRANT, 3 * QUADRANT: QUADRANT}

INSTRUCTIONS: dict[str, Callable[..., Any]] = {}


def instruction(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function an instruction of `nki.isa`, counted on the core that issues it."""

    @functools.wraps(function)
    def issue(*args: P.args, **kwargs: P.kwargs) -> R:
        machine.core().instructions[function.__name__] += 1
        return function(*args, **kwargs)

    INSTRUCTIONS[function.__name__] = issue
    return issue


def tile(value: Any, role: str, places: tuple[Region, ...] = ON_CHIP) -> NkiTensor:
    """`value` as a tile in one of `places` that a compute engine can address."""
    tensor = as_tensor(value, role)
    names = " or ".join(p.value for p in places)
    demand(tensor.buffer in places, "operand-place", f"{role} {tensor}, not in {names}")
    demand(tensor.shape[0] <= PARTITIONS, "partition-limit", f"{role} {tensor}")
    demand(tensor.ndim <= MAX_RANK, "rank-limit", f"{role} {tensor}")
    demand(tensor.size > 0, "operand-shape", f"{role} {tensor} is empty")
    _check_start(tensor, role)
    return tensor


def _check_start(tensor: NkiTensor, role: str) -> None:
    """More than 64 partitions start on partition 0, more than 32 on 0 or 64, others on quadrants."""
    per = max(1, tensor.storage.partition_bytes)
    start, count = tensor.offset * tensor.itemsize // per, tensor.shape[0]
    demand(
        count <= REACH.get(start, 0),
        "partition-start",
        f"{role} {tensor}: {count} partitions from partition {start}",
    )


def on_engine(engine: Any, allowed: tuple[engines, ...], name: str) -> engines:
    """The engine asked for, `unknown` if the choice is left to the compiler."""
    chosen = engines.unknown if engine is None else engine
    demand(isinstance(chosen, engines), "operand-kind", f"engine {engine!r} of {name}")
    demand(chosen is engines.unknown or chosen in allowed, "operator", f"{name} on {chosen}")
    assert isinstance(chosen, engines)
    return chosen


def reached(engine: engines) -> tuple[Region, ...]:
    """Memories an engine reaches: GpSimd has no way to PSUM."""
    return SBUF if engine is engines.gpsimd else ON_CHIP


def rows(tensor: NkiTensor) -> Array:
    """The values as [P, F], in their own type."""
    return read(tensor).reshape(tensor.shape[0], -1)


def floats(tensor: NkiTensor) -> Array:
    """The values as [P, F] in float32."""
    return rows(tensor).astype(F32)


def put(dst: NkiTensor, values: Array) -> None:
    """Write a result; its element count was checked before."""
    write(dst, values)


def same_elements(one: NkiTensor, two: NkiTensor, name: str) -> None:
    """Equal partition counts and equal elements per partition."""
    equal = one.shape[0] == two.shape[0] and one.size == two.size
    demand(equal, "operand-shape", f"{name} of {one} and {two}")


def not_both_in_psum(one: NkiTensor, two: NkiTensor, name: str) -> None:
    both = one.buffer is Region.psum and two.buffer is Region.psum
    demand(not both, "both-psum", f"{name} of {one} and {two}")


def column(value: Any, partitions: int, role: str, dtype: str | None = None) -> NkiTensor:
    """`value` as a [P, 1] tile, of a type if one is given."""
    tensor = tile(value, role)
    fits = tensor.shape[0] == partitions and tensor.size == partitions
    demand(fits, "vector-operand", f"{role} {tensor} for {partitions} partitions")
    demand(dtype is None or tensor.dtype == dtype, "vector-operand", f"{role} {tensor}")
    return tensor


def scalar_or_column(value: Any, partitions: int, role: str, bitwise: bool = False) -> Any:
    """A constant as it is, or a [P, 1] tile's values: float32, or integers for bitwise operators."""
    if isinstance(value, NkiTensor):
        vector = column(value, partitions, role, None if bitwise else "float32")
        demand(not bitwise or is_integer(vector.dtype), "operand-dtype", f"{role} {vector}")
        return rows(vector)
    if isinstance(value, Register):
        value = plain(value)
    return number(value, role, whole=bitwise)


def number(value: Any, role: str, whole: bool = False) -> Any:
    """A constant as float32, or as an integer where bits count."""
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    demand(fits, "operand-kind", f"{role} is {value!r}")
    return int(value) if whole else F32(value)


def integers_only(operator: Operator, *tensors: NkiTensor) -> None:
    """Bitwise operators work on integer bits."""
    for tensor in tensors:
        demand(is_integer(tensor.dtype), "operand-dtype", f"{operator} on {tensor}")


def combine(operator: Operator, values: Array, other: Any, reverse: bool) -> Array:
    """`values operator other`, the other way round if reversed; unary operators take `values` alone."""
    if "binary" not in operator.kinds:
        return operator.apply(values)
    if operator.bitwise and not isinstance(other, np.ndarray):
        other = values.dtype.type(other)
    return operator.apply(other, values) if reverse else operator.apply(values, other)
