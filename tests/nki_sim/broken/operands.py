"""Faults with operands: places, kinds and shapes."""

from __future__ import annotations

from typing import Any

from tests.nki_sim.broken.case import FLOAT_MIN, WIDTH, broken, filled, ps, rows, sb, stored
from tests.nki_sim.namespace import nisa, nl


@broken("operand-place")
def compute_on_hbm(x: Any, bad: bool) -> Any:
    tile = sb(128, WIDTH)
    nisa.tensor_scalar(tile, x[0:128, :] if bad else rows(x), nl.add, 1.0)
    return stored(tile)


@broken("operand-place")
def dma_from_psum(x: Any, bad: bool) -> Any:
    total = ps(WIDTH, WIDTH)
    nisa.nc_matmul(total, rows(x), rows(x), accumulate=False)
    if bad:
        return stored(total)
    out = sb(WIDTH, WIDTH)
    nisa.tensor_copy(dst=out, src=total)
    return stored(out)


@broken("operand-place")
def gpsimd_on_psum(x: Any, bad: bool) -> Any:
    total = ps(128, WIDTH)
    nisa.tensor_copy(total, rows(x), engine=nisa.engine.gpsimd if bad else nisa.engine.vector)
    return stored(rows(x))


@broken("operand-place")
def a_mask_on_psum(x: Any, bad: bool) -> Any:
    scores = ps(128, WIDTH) if bad else sb(128, WIDTH)
    nisa.tensor_copy(scores, rows(x))
    out = sb(128, WIDTH)
    nisa.affine_select(out, [[-1, WIDTH]], 1, scores, -1e9, cmp_op=nl.greater_equal)
    return stored(out)


@broken("operand-place")
def a_matmul_operand_in_psum(x: Any, bad: bool) -> Any:
    left = ps(128, WIDTH) if bad else sb(128, WIDTH)
    nisa.tensor_copy(left, rows(x))
    total = ps(WIDTH, WIDTH)
    nisa.nc_matmul(total, left, rows(x), accumulate=False)
    return stored(rows(x))


@broken("operand-place")
def a_matmul_into_sbuf(x: Any, bad: bool) -> Any:
    total = sb(WIDTH, WIDTH) if bad else ps(WIDTH, WIDTH)
    nisa.nc_matmul(total, rows(x), rows(x), accumulate=False)
    return stored(rows(x))


@broken("both-psum")
def two_inputs_in_psum(x: Any, bad: bool) -> Any:
    one, two = ps(128, WIDTH), ps(128, WIDTH) if bad else sb(128, WIDTH)
    for tile in (one, two):
        nisa.tensor_copy(tile, rows(x))
    out = sb(128, WIDTH)
    nisa.tensor_tensor(out, one, two, op=nl.add)
    return stored(out)


@broken("operand-kind")
def a_tile_where_a_number_is_wanted(x: Any, bad: bool) -> Any:
    tile = rows(x)
    nisa.memset(dst=tile, value=filled(1, 1) if bad else 1.0)
    return stored(tile)


@broken("operand-kind")
def a_number_where_a_tile_is_wanted(x: Any, bad: bool) -> Any:
    tile = rows(x)
    if bad:
        nisa.tensor_tensor(tile, tile, 2.0, op=nl.multiply)
    else:
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    return stored(tile)


@broken("operand-kind")
def a_whole_number_to_fill_a_mask_with(x: Any, bad: bool) -> Any:
    tile = rows(x)
    nisa.affine_select(tile, [[1, WIDTH]], 0, tile, 0 if bad else 0.0)
    return stored(tile)


@broken("operand-kind")
def another_fill_value_of_range_select(x: Any, bad: bool) -> Any:
    tile, low, high = rows(x), filled(128, 1, value=3.0), filled(128, 1, value=9.0)
    fill = -1e9 if bad else FLOAT_MIN
    nisa.range_select(tile, tile, nl.greater, nl.less, low, high, on_false_value=fill)
    return stored(tile)


@broken("operand-shape")
def a_row_added_without_broadcast(x: Any, bad: bool) -> Any:
    tile = rows(x)
    other = filled(1, WIDTH) if bad else filled(128, WIDTH)
    nisa.tensor_tensor(tile, tile, other, op=nl.add)
    return stored(tile)


@broken("operand-shape")
def a_result_tile_too_small(x: Any, bad: bool) -> Any:
    out = sb(128, 32 if bad else WIDTH)
    nisa.tensor_copy(dst=out, src=rows(x))
    return stored(out)


@broken("operand-shape")
def a_pattern_of_the_wrong_length(x: Any, bad: bool) -> Any:
    tile = sb(128, WIDTH)
    nisa.iota(tile, [[1, 60 if bad else WIDTH]], offset=0)
    return stored(tile)


@broken("operand-shape")
def contractions_of_different_length(x: Any, bad: bool) -> Any:
    total = ps(WIDTH, WIDTH)
    nisa.nc_matmul(total, rows(x), rows(x, 100 if bad else 128), accumulate=False)
    return stored(rows(x))


@broken("operand-shape")
def statistics_of_a_wide_row(x: Any, bad: bool) -> Any:
    out = sb(2, 6)
    nisa.bn_stats(out, filled(2, 600 if bad else 512))
    return stored(out)
