"""Vector, Scalar and GpSimd instructions that work element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nki_sim.dtypes import F32, is_integer
from tests.nki_sim.enums import engine as engines
from tests.nki_sim.errors import demand
from tests.nki_sim.operands import (
    SBUF,
    combine,
    floats,
    instruction,
    integers_only,
    not_both_in_psum,
    number,
    on_engine,
    put,
    reached,
    rows,
    same_elements,
    scalar_or_column,
    tile,
)
from tests.nki_sim.operators import Operator, operator_of
from tests.nki_sim.storage import Region
from tests.nki_sim.tensor import NkiTensor

VECTOR, SCALAR, GPSIMD = engines.vector, engines.scalar, engines.gpsimd
EXACT_INTEGERS = frozenset({"int32", "uint32"})
PREDICATES = frozenset({"uint8", "uint16", "uint32"})
# What the Scalar engine does in tensor_scalar on Trainium 2.
SCALAR_PAIRS = {("multiply", "add"), ("multiply", None), ("add", None)}


@instruction
def memset(dst: Any, value: Any, engine: Any = None, name: Any = None) -> None:
    """dst = value, an integer for an integer tile."""
    places = reached(on_engine(engine, (VECTOR, GPSIMD), "memset"))
    out = tile(dst, "dst", places)
    number(value, "value")
    whole = is_integer(out.dtype)
    demand(isinstance(value, int) or not whole, "operand-dtype", f"memset of {out} with {value!r}")
    put(out, np.full(out.shape, value, dtype=np.int64 if whole else F32))


@instruction
def tensor_copy(dst: Any, src: Any, engine: Any = None, name: Any = None) -> None:
    """dst = src, cast through float32 if the types differ. On-chip memories only."""
    places = reached(on_engine(engine, (VECTOR, SCALAR, GPSIMD), "tensor_copy"))
    out, data = tile(dst, "dst", places), tile(src, "src", places)
    same_elements(out, data, "tensor_copy")
    put(out, rows(data) if out.dtype == data.dtype else floats(data))


@instruction
def tensor_tensor(
    dst: Any, data1: Any, data2: Any, op: Any, engine: Any = None, name: Any = None
) -> None:
    """dst = data1 op data2, in float32; exact on GpSimd where everything is a 32-bit integer."""
    operator = operator_of(op, "binary", "tensor_tensor")
    chosen = on_engine(engine, (VECTOR, GPSIMD), "tensor_tensor")
    places = SBUF if operator.name == "power" else reached(chosen)
    out, one, two = (
        tile(t, role, places) for t, role in ((dst, "dst"), (data1, "data1"), (data2, "data2"))
    )
    not_both_in_psum(one, two, "tensor_tensor")
    same_elements(one, two, "tensor_tensor")
    same_elements(out, one, "tensor_tensor")
    left, right = rows(one), rows(two)
    if operator.bitwise:
        integers_only(operator, out, one, two)
        demand(one.dtype == two.dtype, "operand-dtype", f"{operator} of {one} and {two}")
    elif chosen is VECTOR or not _all_exact(out, one, two):
        left, right = left.astype(F32), right.astype(F32)
    put(out, operator.apply(left, right))


def _all_exact(*tensors: NkiTensor) -> bool:
    """Whether GpSimd takes the instruction by itself: 32-bit integers, none of them in PSUM."""
    return all(t.dtype in EXACT_INTEGERS and t.buffer is not Region.psum for t in tensors)


@instruction
def tensor_scalar(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = None,
    name: Any = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1; operands are constants or [P, 1] tiles."""
    first = _vector_operator(op0)
    second = None if op1 is None else _vector_operator(op1)
    chosen = on_engine(engine, (VECTOR, SCALAR, GPSIMD), "tensor_scalar")
    _check_engine(chosen, first, second)
    out, src = tile(dst, "dst", reached(chosen)), tile(data, "data", reached(chosen))
    same_elements(out, src, "tensor_scalar")
    if first.bitwise:
        integers_only(first, out, src)
    values = rows(src) if first.bitwise else floats(src)
    values = combine(first, values, _operand(operand0, first, src, "operand0"), reverse0)
    if second is None:
        demand(operand1 is None, "operand-kind", f"operand1 is {operand1!r} without op1")
    else:
        operand = _operand(operand1, second, src, "operand1")
        values = combine(second, values, operand, reverse1)
    put(out, values)


def _vector_operator(op: Any) -> Operator:
    kind = "unary" if isinstance(op, Operator) and "unary" in op.kinds else "binary"
    return operator_of(op, kind, "tensor_scalar")


def _check_engine(chosen: engines, first: Operator, second: Operator | None) -> None:
    """Each engine has its own operators; bitwise and arithmetic ones do not mix."""
    mixed = second is not None and second.bitwise != first.bitwise
    demand(not mixed, "operator", f"tensor_scalar chains {first} and {second}")
    names = (first.name, None if second is None else second.name)
    if chosen is SCALAR:
        demand(names in SCALAR_PAIRS, "operator", f"tensor_scalar of {names} on the Scalar engine")
    if chosen is GPSIMD:
        demand(names == ("rsqrt", None), "operator", f"tensor_scalar of {names} on GpSimd")


def _operand(value: Any, operator: Operator, data: NkiTensor, role: str) -> Any:
    """An operand, which unary operators have none of."""
    if "binary" in operator.kinds:
        return scalar_or_column(value, data.shape[0], role, operator.bitwise)
    empty = value is None or (not isinstance(value, NkiTensor) and value == 0)
    demand(empty, "operand-kind", f"{role} of {operator} is {value!r}")
    return None


@instruction
def scalar_tensor_tensor(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: Any = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1, with a tile as operand1."""
    first = operator_of(op0, "binary", "scalar_tensor_tensor")
    second = operator_of(op1, "binary", "scalar_tensor_tensor")
    arithmetic = not (first.bitwise or second.bitwise)
    demand(arithmetic, "operator", f"scalar_tensor_tensor with {first} and {second}")
    out, src, other = tile(dst, "dst"), tile(data, "data"), tile(operand1, "operand1")
    not_both_in_psum(src, other, "scalar_tensor_tensor")
    same_elements(src, other, "scalar_tensor_tensor")
    same_elements(out, src, "scalar_tensor_tensor")
    operand = scalar_or_column(operand0, src.shape[0], "operand0")
    values = combine(first, floats(src), operand, reverse0)
    put(out, combine(second, values, floats(other), reverse1))


@instruction
def reciprocal(dst: Any, data: Any, name: Any = None) -> None:
    """dst = 1 / data, on the Vector engine."""
    out, src = tile(dst, "dst"), tile(data, "data")
    same_elements(out, src, "reciprocal")
    with np.errstate(divide="ignore"):
        put(out, F32(1) / floats(src))


@instruction
def tensor_copy_predicated(
    dst: Any, src: Any, predicate: Any, reverse_pred: bool = False, name: Any = None
) -> None:
    """dst = src where predicate is not 0 (is 0, if reversed); elsewhere dst keeps its value."""
    out, mask = tile(dst, "dst"), tile(predicate, "predicate")
    same_elements(out, mask, "tensor_copy_predicated")
    demand(mask.dtype in PREDICATES, "operand-dtype", f"predicate {mask}")
    where = (rows(mask) != 0) != bool(reverse_pred)
    if isinstance(src, NkiTensor):
        data = tile(src, "src")
        same_elements(out, data, "tensor_copy_predicated")
        not_both_in_psum(data, mask, "tensor_copy_predicated")
        demand(data.dtype == out.dtype, "operand-dtype", f"src {data} for {out}")
        new = rows(data)
    else:
        new = np.full(where.shape, number(src, "src"))
    # The old values are needed only where they stay.
    put(out, new if where.all() else np.where(where, new, rows(out)))
