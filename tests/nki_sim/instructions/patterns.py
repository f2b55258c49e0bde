"""Index patterns, masks and selections (GpSimd and Vector engines)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nki_sim.dtypes import F32, NUMPY, Array, is_integer
from tests.nki_sim.enums import reduce_cmd as commands
from tests.nki_sim.errors import demand
from tests.nki_sim.hardware import QUADRANT
from tests.nki_sim.instructions.reductions import vector_sums
from tests.nki_sim.operands import (
    SBUF,
    column,
    floats,
    instruction,
    not_both_in_psum,
    number,
    put,
    rows,
    same_elements,
    scalar_or_column,
    tile,
)
from tests.nki_sim.operators import OPERATORS, Operator, operator_of
from tests.nki_sim.registers import plain
from tests.nki_sim.tensor import NkiTensor

SELECTORS = frozenset({"int8", "uint8", "int16", "uint16"})
KEEP = 255  # a mask entry of nc_stream_shuffle: this partition keeps its value
FALSE_VALUE = -3.4028235e38


def affine(out: NkiTensor, pattern: Any, offset: Any, multiplier: int) -> Array:
    """offset + partition * multiplier + the pattern's steps, [P, F] int64."""
    demand(1 <= len(pattern) <= 4, "operand-shape", f"a pattern of {len(pattern)} axes")
    values = np.asarray(plain(offset), dtype=np.int64)
    for step, count in pattern:
        values = values[..., None] + np.arange(count) * step
    partitions = out.shape[0]
    fits = values.size * partitions == out.size
    demand(fits, "operand-shape", f"pattern {pattern} for {out}")
    return np.arange(partitions)[:, None] * multiplier + values.reshape(1, -1)


@instruction
def iota(
    dst: Any, pattern: Any, offset: Any = 0, channel_multiplier: int = 0, name: Any = None
) -> None:
    """dst = offset + partition * channel_multiplier + pattern, in int32, then cast."""
    out = tile(dst, "dst", SBUF)
    values = affine(out, pattern, offset, channel_multiplier)
    fits = np.abs(values).max() < 2**31
    demand(fits, "operand-dtype", f"iota up to {np.abs(values).max()} in 32 bits")
    put(out, values.astype(np.int32))


@instruction
def affine_select(
    dst: Any,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: Any,
    on_false_value: Any,
    cmp_op: Any = None,
    offset: Any = 0,
    name: Any = None,
) -> None:
    """dst = on_true_tile where the affine value compares true with 0, else on_false_value."""
    compare = operator_of(cmp_op or OPERATORS["equal"], "compare", "affine_select")
    out, data = tile(dst, "dst", SBUF), tile(on_true_tile, "on_true_tile", SBUF)
    same_elements(out, data, "affine_select")
    real = isinstance(on_false_value, float)
    demand(real, "operand-kind", f"on_false_value is {on_false_value!r}")
    chosen = compare.apply(affine(out, pattern, offset, channel_multiplier), 0) != 0
    put(out, np.where(chosen, floats(data), F32(on_false_value)))


@instruction
def range_select(
    dst: Any,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_res: Any = None,
    reduce_op: Any = None,
    range_start: int = 0,
    on_false_value: float = FALSE_VALUE,
    name: Any = None,
) -> None:
    """dst = on_true_tile where column + range_start lies within both bounds; row maxima on request."""
    compare = [operator_of(op, "compare", "range_select") for op in (comp_op0, comp_op1)]
    unequal = any(op.name == "not_equal" for op in compare)
    demand(not unequal, "operator", "range_select with nl.not_equal")
    out, data = tile(dst, "dst"), tile(on_true_tile, "on_true_tile")
    same_elements(out, data, "range_select")
    demand(not is_integer(data.dtype), "operand-dtype", f"range_select of {data}")
    fill = number(on_false_value, "on_false_value")
    demand(fill == F32(FALSE_VALUE), "operand-kind", f"on_false_value {on_false_value!r}")
    width = data.size // data.shape[0]
    demand(abs(range_start) + width <= 2**24, "operand-dtype", f"range_start {range_start}")
    index = np.arange(width, dtype=F32)[None] + F32(plain(range_start))
    inside = np.ones(index.shape, dtype=bool)
    for operator, value, role in zip(compare, (bound0, bound1), ("bound0", "bound1"), strict=True):
        bound = floats(column(value, data.shape[0], role, "float32"))
        inside = inside & (operator.apply(index, bound) != 0)
    result = np.where(inside, floats(data), F32(FALSE_VALUE))
    put(out, result)
    vector_sums(_maximum(reduce_op, "range_select"), result, reduce_cmd, reduce_res)


def _maximum(operator: Any, name: str) -> Operator:
    """The one operator the selecting instructions reduce with."""
    chosen = operator_of(operator or OPERATORS["maximum"], "reduce", name)
    demand(chosen.name == "maximum", "operator", f"{name} reduces with {chosen}")
    return chosen


@instruction
def select_reduce(
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    reduce_op: Any = None,
    reverse_pred: bool = False,
    name: Any = None,
) -> None:
    """dst = on_true where predicate is not 0 (is 0, if reversed), else on_false; row maxima on request."""
    out, mask, data = tile(dst, "dst"), tile(predicate, "predicate"), tile(on_true, "on_true")
    same_elements(out, mask, "select_reduce")
    same_elements(out, data, "select_reduce")
    not_both_in_psum(data, mask, "select_reduce")
    demand(mask.dtype in SELECTORS, "operand-dtype", f"predicate {mask}")
    wide = data.dtype in ("tfloat32", "int32", "uint32")
    demand(not wide, "operand-dtype", f"on_true {data}")
    other = scalar_or_column(on_false, data.shape[0], "on_false")
    where = (rows(mask) != 0) != bool(reverse_pred)
    result = np.where(where, floats(data), other)
    put(out, result)
    vector_sums(_maximum(reduce_op, "select_reduce"), result, reduce_cmd, reduce_res)


@instruction
def nc_stream_shuffle(dst: Any, src: Any, shuffle_mask: Any, name: Any = None) -> None:
    """Within every 32 partitions: dst[q + i] = src[q + mask[i]]; 255 keeps the old value."""
    out, data = tile(dst, "dst"), tile(src, "src")
    demand(out.dtype == data.dtype, "operand-dtype", f"nc_stream_shuffle of {data} into {out}")
    mask = [int(m) for m in shuffle_mask]
    fits = len(mask) == QUADRANT and all(0 <= m < QUADRANT or m == KEEP for m in mask)
    demand(fits, "operand-shape", f"shuffle mask {mask}")
    same_elements(out, data, "nc_stream_shuffle")
    new = rows(data)
    for first in range(0, out.shape[0], QUADRANT):
        for at, source in enumerate(mask[: out.shape[0] - first]):
            if source == KEEP:
                continue
            inside = first + source < data.shape[0]
            demand(inside, "operand-shape", f"shuffle mask entry {source} for {data}")
            put(out[first + at : first + at + 1], new[first + source])


@instruction
def max8(dst: Any, src: Any, name: Any = None) -> None:
    """dst [P, 8]: the eight largest of each row, largest first."""
    out, data = tile(dst, "dst"), tile(src, "src")
    values = floats(data)
    _searchable(data)
    _eight(out, data.shape[0])
    put(out, -np.sort(-values, axis=1)[:, :8])


@instruction
def nc_find_index8(dst: Any, data: Any, vals: Any, name: Any = None) -> None:
    """dst [P, 8] uint16 or uint32: where in its row each of eight values is; equal values one after the other.

    A value that is not there gives all ones.
    """
    out, src, wanted = tile(dst, "dst"), tile(data, "data"), tile(vals, "vals")
    _eight(out, src.shape[0])
    _eight(wanted, src.shape[0])
    _searchable(src)
    demand(out.dtype in ("uint16", "uint32"), "operand-dtype", f"nc_find_index8 into {out}")
    values, targets = floats(src), floats(wanted)
    found = np.full(targets.shape, np.iinfo(NUMPY[out.dtype]).max, np.uint32)
    for row in range(len(values)):
        used: dict[float, int] = {}
        for at, target in enumerate(targets[row].tolist()):
            places = np.flatnonzero(values[row] == target)
            turn = used.get(target, 0)
            if turn < len(places):
                found[row, at] = places[turn]
                used[target] = turn + 1
    put(out, found)


@instruction
def nc_match_replace8(
    dst: Any, data: Any, vals: Any, imm: float, dst_idx: Any = None, name: Any = None
) -> None:
    """dst = data with a match of each of eight values replaced by `imm`; dst_idx: where it was.

    The values are taken from the last to the first, each one finding the first match that is left.
    """
    out, src, wanted = tile(dst, "dst"), tile(data, "data"), tile(vals, "vals")
    same_elements(out, src, "nc_match_replace8")
    _eight(wanted, src.shape[0])
    values, targets = floats(src), floats(wanted)
    found = np.full(targets.shape, 0xFFFFFFFF, np.uint32)
    for row in range(len(values)):
        left = values[row].copy()
        for at in reversed(range(8)):
            places = np.flatnonzero(left == targets[row, at])
            if len(places):
                found[row, at] = places[0]
                left[places[0]] = np.nan
                values[row, places[0]] = imm
    put(out, values)
    if dst_idx is not None:
        index = tile(dst_idx, "dst_idx")
        _eight(index, src.shape[0])
        put(index, found)


def _eight(tensor: NkiTensor, partitions: int) -> None:
    fits = tensor.shape[0] == partitions and tensor.size == 8 * partitions
    demand(fits, "operand-shape", f"{tensor} for eight values per partition")


def _searchable(tensor: NkiTensor) -> None:
    """Rows of 8 to 16,384 elements."""
    width = tensor.size // tensor.shape[0]
    demand(8 <= width <= 16384, "operand-shape", f"a search in {tensor}")
