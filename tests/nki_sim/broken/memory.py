"""Faults with memory: sizes, places, views, unwritten bytes."""

from __future__ import annotations

from typing import Any

from tests.nki_sim.broken.case import ROWS, WIDTH, broken, filled, hbm, ps, rows, sb, stored
from tests.nki_sim.namespace import nisa, nl


@broken("partition-limit")
def a_tile_of_129_partitions(x: Any, bad: bool) -> Any:
    tile = sb(129 if bad else 128, WIDTH)
    nisa.dma_copy(dst=tile, src=x[0 : tile.shape[0], :])
    return stored(tile)


@broken("partition-limit")
def all_rows_at_once(x: Any, bad: bool) -> Any:
    out = hbm(ROWS, WIDTH)
    step = ROWS if bad else 128
    for start in range(0, ROWS, step):
        size = min(step, ROWS - start)
        tile = sb(size, WIDTH)
        nisa.dma_copy(dst=tile, src=x[start : start + size, :])
        nisa.dma_copy(dst=out[start : start + size, :], src=tile)
    return out


@broken("on-chip-rank")
def a_vector_on_chip(x: Any, bad: bool) -> Any:
    tile = sb(64) if bad else sb(1, 64)
    nisa.dma_copy(dst=tile, src=x[0:1, :])
    return stored(tile)


@broken("rank-limit")
def six_axes(x: Any, bad: bool) -> Any:
    tile = rows(x)
    view = tile.reshape((128, 2, 2, 2, 2, 4) if bad else (128, 2, 2, 2, 8))
    nisa.tensor_scalar(view, view, nl.add, 1.0)
    return stored(tile)


@broken("sbuf-budget")
def a_row_too_wide_for_sbuf(x: Any, bad: bool) -> Any:
    return stored(filled(2, 50_000 if bad else 40_000))


@broken("sbuf-budget")
def tiles_that_live_too_long(x: Any, bad: bool) -> Any:
    kept = []
    for index in range(5):
        tile = filled(2, 10_000, value=float(index))
        if bad or index == 0:
            kept.append(tile)
    return stored(kept[-1][:, 0:4])


@broken("sbuf-budget")
def a_tile_placed_past_the_end(x: Any, bad: bool) -> Any:
    place = (0, 229_200 if bad else 4096)
    tile = nl.ndarray((128, WIDTH), dtype=nl.float32, buffer=nl.sbuf, address=place)
    nisa.dma_copy(dst=tile, src=x[0:128, :])
    return stored(tile)


@broken("psum-budget")
def nine_banks(x: Any, bad: bool) -> Any:
    kept = [ps(128, 512) for _ in range(9 if bad else 8)]
    for tile in kept:
        nisa.memset(dst=tile, value=0.0)
    return stored(rows(x))


@broken("psum-budget")
def small_tiles_take_a_bank_each(x: Any, bad: bool) -> Any:
    kept = [ps(128, 1) for _ in range(9 if bad else 8)]
    nisa.memset(dst=kept[0], value=0.0)
    return stored(rows(x))


@broken("psum-bank")
def a_product_over_two_banks(x: Any, bad: bool) -> Any:
    left, right = rows(x), filled(128, 512)
    total = ps(WIDTH, 1024)
    at = 256 if bad else 512
    nisa.nc_matmul(total[:, at : at + 512], left, right, accumulate=False)
    out = sb(WIDTH, 512)
    nisa.tensor_copy(dst=out, src=total[:, at : at + 512])
    return stored(out)


@broken("unwritten-read")
def unwritten_tail_rows_are_used(x: Any, bad: bool) -> Any:
    tile = sb(128, WIDTH)
    nisa.dma_copy(dst=tile[0:72, :], src=x[128:200, :])
    used = tile if bad else tile[0:72, :]
    nisa.tensor_scalar(used, used, nl.multiply, 2.0)
    return stored(used)


@broken("unwritten-read")
def a_sum_that_starts_from_nothing(x: Any, bad: bool) -> Any:
    tile, total = rows(x), sb(128, WIDTH)
    if not bad:
        nisa.memset(dst=total, value=0.0)
    nisa.tensor_tensor(total, total, tile, op=nl.add)
    return stored(total)


@broken("unwritten-read")
def half_of_a_row_is_read_back(x: Any, bad: bool) -> Any:
    scratch = nl.ndarray((4, WIDTH), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=scratch[:, 0:32], src=x[0:4, 0:32])
    return stored(rows(scratch, 4, WIDTH if bad else 32))


@broken("unwritten-read")
def a_register_without_a_value(x: Any, bad: bool) -> Any:
    register = nisa.register_alloc(None if bad else 3)
    out = hbm(1, WIDTH)
    nisa.dma_copy(dst=out, src=x.select(0, register))
    return out


@broken("out-of-bounds")
def a_slice_past_the_end(x: Any, bad: bool) -> Any:
    tile = sb(128, WIDTH) if bad else sb(72, WIDTH)
    nisa.dma_copy(dst=tile, src=x[128 : 128 + tile.shape[0], :])
    return stored(tile)


@broken("out-of-bounds")
def an_index_past_the_end(x: Any, bad: bool) -> Any:
    out = hbm(WIDTH)
    nisa.dma_copy(dst=out, src=x[ROWS if bad else ROWS - 1])
    return out


@broken("out-of-bounds")
def an_access_pattern_past_the_end(x: Any, bad: bool) -> Any:
    tile = sb(2, WIDTH)
    nisa.dma_copy(
        dst=tile, src=x.ap([[WIDTH, 2], [1, WIDTH]], offset=(199 if bad else 198) * WIDTH)
    )
    return stored(tile)


@broken("dtype-exists")
def sixty_four_bits(x: Any, bad: bool) -> Any:
    return stored(filled(2, 3, dtype="float64" if bad else nl.float32))


@broken("partition-view")
def partitions_turned_into_columns(x: Any, bad: bool) -> Any:
    tile = rows(x)
    view = tile.permute((1, 0)) if bad else tile.permute((0, 1))
    return stored(view)


@broken("partition-view")
def partitions_merged_with_columns(x: Any, bad: bool) -> Any:
    tile = rows(x)
    return stored(tile.reshape((64, 128)) if bad else tile.reshape((128, 8, 8)))


@broken("partition-view")
def a_row_broadcast_over_partitions(x: Any, bad: bool) -> Any:
    tile = rows(x, 1)
    if bad:
        return stored(tile.broadcast(0, 128))
    return stored(tile.expand_dim(1).broadcast(1, 3))


@broken("view-shape")
def a_reshape_that_loses_elements(x: Any, bad: bool) -> Any:
    return stored(rows(x).reshape((128, 60) if bad else (128, 4, 16)))


@broken("view-shape")
def a_reshape_that_would_copy(x: Any, bad: bool) -> Any:
    tile = rows(x).reshape((128, 8, 8))
    return stored((tile.permute((0, 2, 1)) if bad else tile).reshape((128, 64)))


@broken("access-pattern")
def a_partition_stride_of_a_column(x: Any, bad: bool) -> Any:
    return stored(rows(x).ap([[1 if bad else WIDTH, 128], [1, 8]]))


@broken("access-pattern")
def a_pattern_on_a_view(x: Any, bad: bool) -> Any:
    source = x[1:ROWS, :] if bad else x
    tile = sb(4, WIDTH)
    nisa.dma_copy(dst=tile, src=source.ap([[WIDTH, 4], [1, WIDTH]], offset=0 if bad else WIDTH))
    return stored(tile)


@broken("assignment")
def an_element_is_assigned(x: Any, bad: bool) -> Any:
    tile = rows(x)
    if bad:
        tile[0, 0] = 1.0
    else:
        nisa.memset(dst=tile[0:1, 0:1], value=1.0)
    return stored(tile)


@broken("output-place")
def a_result_in_private_memory(x: Any, bad: bool) -> Any:
    place = nl.private_hbm if bad else nl.shared_hbm
    out = nl.ndarray((ROWS, WIDTH), dtype=nl.float32, buffer=place)
    nisa.dma_copy(dst=out, src=x)
    return out


@broken("output-place")
def a_result_that_stays_on_chip(x: Any, bad: bool) -> Any:
    tile = rows(x)
    return tile if bad else stored(tile)


@broken("output-unwritten")
def tail_rows_are_never_written(x: Any, bad: bool) -> Any:
    out = hbm(ROWS, WIDTH)
    for start in range(0, ROWS - 127 if bad else ROWS, 128):
        size = min(128, ROWS - start)
        nisa.dma_copy(dst=out[start : start + size, :], src=x[start : start + size, :])
    return out


@broken("output-unwritten")
def the_last_column_is_never_written(x: Any, bad: bool) -> Any:
    out = hbm(ROWS, WIDTH)
    width = WIDTH - 1 if bad else WIDTH
    nisa.dma_copy(dst=out[:, 0:width], src=x[:, 0:width])
    return out
