"""Instructions that combine elements along the free axes, and the Scalar engine's activation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nki_sim import machine
from tests.nki_sim.access import read
from tests.nki_sim.dtypes import F32, Array
from tests.nki_sim.enums import reduce_cmd as commands
from tests.nki_sim.errors import demand
from tests.nki_sim.hardware import BN_STATS_COLUMNS
from tests.nki_sim.operands import (
    column,
    combine,
    floats,
    instruction,
    integers_only,
    not_both_in_psum,
    number,
    put,
    same_elements,
    scalar_or_column,
    tile,
)
from tests.nki_sim.operators import Operator, operator_of
from tests.nki_sim.tensor import NkiTensor

STARTS = {"add": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}


@instruction
def tensor_reduce(
    dst: Any,
    op: Any,
    data: Any,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: Any = None,
) -> None:
    """dst = data combined over its last axes, negated if asked."""
    operator = operator_of(op, "reduce", "tensor_reduce")
    out, src = tile(dst, "dst"), tile(data, "data")
    axes = tuple(a % src.ndim for a in ((axis,) if isinstance(axis, int) else tuple(axis)))
    last = tuple(range(src.ndim - len(axes), src.ndim))
    legal = len(axes) > 0 and 0 not in axes and tuple(sorted(axes)) == last
    demand(legal, "reduce-axis", f"tensor_reduce of {src} over {axes}")
    left = int(np.prod(src.shape[: src.ndim - len(axes)]))
    fits = out.shape[0] == src.shape[0] and out.size == left
    demand(fits, "operand-shape", f"tensor_reduce of {src} over {axes} into {out}")
    values = read(src)
    if operator.bitwise:
        integers_only(operator, out, src)
        demand(not negate, "operator", f"{operator} negated")
    else:
        values = values.astype(F32)
    result = operator.reduce(values, axes)
    put(out, -result if negate else result)


@instruction
def activation(
    dst: Any,
    op: Any,
    data: Any,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: commands = commands.idle,
    name: Any = None,
) -> None:
    """dst = op(data * scale + bias), and optionally the sums of its rows.

    The sums live in registers of the core that outlast the instruction: `reset_reduce` starts them,
    `reduce` adds to them, and `reduce_res` [P, 1] gets what they then hold.
    """
    out, src = tile(dst, "dst"), tile(data, "data")
    same_elements(out, src, "activation")
    function = operator_of(op, "function", "activation")
    partitions = src.shape[0]
    factor = scalar_or_column(scale, partitions, "scale")
    shift = F32(0) if bias is None else _bias(bias, partitions)
    result = function.activate((floats(src) * factor + shift).astype(F32))
    demand(isinstance(reduce_cmd, commands), "operand-kind", f"reduce_cmd {reduce_cmd!r}")
    sums = machine.core().scalar_sums
    if reduce_cmd in (commands.reset, commands.reset_reduce):
        sums.reset(0)
    if reduce_cmd in (commands.reduce, commands.reset_reduce):
        adds = operator_of(reduce_op, "reduce", "activation").name == "add"
        demand(adds, "operator", f"activation reduces with {reduce_op!r}")
        sums.held(partitions)[:] += result.sum(axis=1, keepdims=True, dtype=F32)
    put(out, result)
    if reduce_res is not None:
        put(column(reduce_res, partitions, "reduce_res"), sums.held(partitions))


def _bias(value: Any, partitions: int) -> Any:
    """A constant, or a [P, 1] tile of any type but tfloat32."""
    if isinstance(value, NkiTensor):
        vector = column(value, partitions, "bias")
        demand(vector.dtype != "tfloat32", "operand-dtype", f"bias {vector}")
        return floats(vector)
    return number(value, "bias")


@instruction
def activation_reduce(
    dst: Any,
    op: Any,
    data: Any,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    name: Any = None,
) -> None:
    """`activation` with fresh sums."""
    activation(dst, op, data, bias, scale, reduce_op, reduce_res, commands.reset_reduce, name)


def vector_sums(
    operator: Operator, values: Array, command: Any, result: Any, start: Any = None
) -> None:
    """Combine the rows of `values` in the Vector engine's registers; `result` [P, 1] gets them.

    What `idle` leaves in the registers is not defined, so they count as unset after it.
    """
    demand(isinstance(command, commands), "operand-kind", f"reduce_cmd {command!r}")
    demand(command is not commands.reset, "operand-kind", f"reduce_cmd {command}")
    sums, partitions = machine.core().vector_sums, len(values)
    if command is commands.idle:
        sums.valid[:] = False
        demand(result is None, "sums-unset", "reduce_res with reduce_cmd.idle")
        return
    if command is commands.reset_reduce:
        sums.reset(STARTS[operator.name])
    if command is commands.load_reduce:
        first = scalar_or_column(start, partitions, "reduce_init")
        sums.load(np.broadcast_to(np.asarray(first, F32), (partitions, 1)))
    held = sums.held(partitions)
    held[:] = operator.apply(held, operator.reduce(values.astype(F32), (1,)))
    if result is not None:
        put(column(result, partitions, "reduce_res"), held)


@instruction
def tensor_scalar_reduce(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any = None,
    reverse0: bool = False,
    reduce_cmd: commands = commands.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: Any = None,
) -> None:
    """dst = data op0 operand0, and reduce_res [P, 1] = its rows combined."""
    first = operator_of(op0, "binary", "tensor_scalar_reduce")
    supported = not (first.bitwise or reverse0 or reduce_res_negate)
    demand(supported, "operator", f"tensor_scalar_reduce with {first}, reversed or negated")
    combined = operator_of(reduce_op, "reduce", "tensor_scalar_reduce")
    demand(combined.name in STARTS, "operator", f"tensor_scalar_reduce reduces with {combined}")
    out, src = tile(dst, "dst"), tile(data, "data")
    same_elements(out, src, "tensor_scalar_reduce")
    operand = scalar_or_column(operand0, src.shape[0], "operand0")
    values = combine(first, floats(src), operand, False)
    put(out, values)
    vector_sums(combined, values, reduce_cmd, reduce_res, reduce_init)


@instruction
def tensor_tensor_scan(
    dst: Any,
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: Any = None,
) -> None:
    """Along each row: state = (data0 op0 state) op1 data1, every state written to dst."""
    first = operator_of(op0, "binary", "tensor_tensor_scan")
    second = operator_of(op1, "binary", "tensor_tensor_scan")
    out, one, two = tile(dst, "dst"), tile(data0, "data0"), tile(data1, "data1")
    not_both_in_psum(one, two, "tensor_tensor_scan")
    same_elements(one, two, "tensor_tensor_scan")
    same_elements(out, one, "tensor_tensor_scan")
    left, right = floats(one), floats(two)
    start = scalar_or_column(initial, len(left), "initial")
    state = np.broadcast_to(np.asarray(start, F32), (len(left), 1))[:, 0]
    result = np.empty_like(left)
    for at in range(left.shape[1]):
        state = combine(first, left[:, at], state, reverse0)
        state = combine(second, state, right[:, at], reverse1)
        result[:, at] = state
    put(out, result)


@instruction
def bn_stats(dst: Any, data: Any, name: Any = None) -> None:
    """dst [P, 6]: count, mean, count * variance of the even columns, then of the odd ones."""
    out, src = tile(dst, "dst"), tile(data, "data")
    values = floats(src)
    demand(values.shape[1] <= BN_STATS_COLUMNS, "operand-shape", f"bn_stats of {src}")
    fits = out.shape[0] == src.shape[0] and out.size == 6 * out.shape[0]
    demand(fits, "operand-shape", f"bn_stats into {out}")
    parts = []
    for half in (values[:, 0::2], values[:, 1::2]):
        count = half.shape[1]
        mean = half.mean(axis=1) if count else np.zeros(len(half), F32)
        spread = ((half - mean[:, None]) ** 2).sum(axis=1)
        parts += [np.full(len(half), count, F32), mean, spread]
    put(out, np.stack(parts, axis=1))


@instruction
def bn_aggr(dst: Any, data: Any, name: Any = None) -> None:
    """dst [P, 2]: mean and variance of the groups that `bn_stats` described."""
    out, src = tile(dst, "dst"), tile(data, "data")
    demand(src.size // src.shape[0] % 3 == 0, "operand-shape", f"bn_aggr of {src}")
    fits = out.shape[0] == src.shape[0] and out.size == 2 * out.shape[0]
    demand(fits, "operand-shape", f"bn_aggr into {out}")
    groups = floats(src).reshape(src.shape[0], -1, 3)
    count, mean, spread = (groups[..., n] for n in range(3))
    total = count.sum(axis=1)
    average = (count * mean).sum(axis=1) / total
    between = (count * (mean - average[:, None]) ** 2).sum(axis=1)
    put(out, np.stack([average, (spread.sum(axis=1) + between) / total], axis=1))
