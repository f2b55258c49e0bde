"""Faults in the order of things: accumulation, sums, transposes, and the two cores."""

from __future__ import annotations

from typing import Any

from tests.nki_sim.broken.case import ROWS, WIDTH, broken, filled, hbm, ps, rows, sb, stored
from tests.nki_sim.namespace import nisa, nl


@broken("accumulate")
def the_first_product_accumulates(x: Any, bad: bool) -> Any:
    total = ps(WIDTH, WIDTH)
    for index in range(2):
        nisa.nc_matmul(total, rows(x), rows(x), accumulate=bad or index > 0)
    return stored(rows(x))


@broken("accumulate")
def a_product_added_to_zeros(x: Any, bad: bool) -> Any:
    total = ps(WIDTH, WIDTH)
    nisa.memset(dst=total, value=0.0)
    nisa.nc_matmul(total, rows(x), rows(x), accumulate=bad)
    return stored(rows(x))


@broken("accumulate-unclear")
def a_tile_used_again_without_a_flag(x: Any, bad: bool) -> Any:
    total, out = ps(WIDTH, WIDTH), sb(WIDTH, WIDTH)
    for _ in range(2):
        nisa.nc_matmul(total, rows(x), rows(x), accumulate=None if bad else False)
        nisa.tensor_copy(dst=out, src=total)
    return stored(out)


@broken("matmul-tile")
def too_many_stationary_columns(x: Any, bad: bool) -> Any:
    left, right = filled(WIDTH, 129 if bad else 128), filled(WIDTH, 8)
    total = ps(128, 8)
    nisa.nc_matmul(total, left, right, accumulate=False)
    return stored(rows(x))


@broken("matmul-tile")
def too_many_moving_columns(x: Any, bad: bool) -> Any:
    columns = 513 if bad else 512
    nisa.nc_matmul(ps(8, columns), filled(WIDTH, 8), filled(WIDTH, columns), accumulate=False)
    return stored(rows(x))


@broken("matmul-tile")
def a_part_of_the_array_that_does_not_start_on_one(x: Any, bad: bool) -> Any:
    total, tile = ps(WIDTH, WIDTH), rows(x, 64)
    nisa.nc_matmul(
        total, tile, tile, accumulate=False,
        tile_position=(32 if bad else 64, 0), tile_size=(64, 128),
    )  # fmt: skip
    return stored(rows(x))


@broken("transpose-shape")
def a_transpose_with_no_identity(x: Any, bad: bool) -> Any:
    other = filled(128, 128) if bad else nl.shared_identity_matrix(128, dtype=nl.float32)
    nisa.nc_matmul(ps(WIDTH, 128), rows(x), other, is_transpose=True)
    return stored(rows(x))


@broken("transpose-shape")
def a_transpose_of_130_columns(x: Any, bad: bool) -> Any:
    width = 130 if bad else 128
    nisa.nc_transpose(ps(128, 16), filled(16, width))
    return stored(rows(x))


@broken("transpose-shape")
def a_result_that_is_not_turned(x: Any, bad: bool) -> Any:
    turned = ps(128, WIDTH) if bad else ps(WIDTH, 128)
    nisa.nc_transpose(turned, rows(x))
    return stored(rows(x))


@broken("transpose-shape")
def a_large_transpose_on_the_vector_engine(x: Any, bad: bool) -> Any:
    count = 33 if bad else 32
    turned = sb(8, count)
    nisa.nc_transpose(turned, rows(x, count, 8), engine=nisa.engine.vector)
    return stored(turned)


@broken("sums-unset")
def sums_that_nothing_reset(x: Any, bad: bool) -> Any:
    tile, total = rows(x), sb(128, 1)
    command = nisa.reduce_cmd.reduce if bad else nisa.reduce_cmd.reset_reduce
    nisa.activation(tile, nl.exp, tile, reduce_op=nl.add, reduce_res=total, reduce_cmd=command)
    return stored(total)


@broken("sums-unset")
def sums_asked_for_but_not_made(x: Any, bad: bool) -> Any:
    tile, total = rows(x), sb(128, 1)
    more = {} if bad else {"reduce_cmd": nisa.reduce_cmd.reset_reduce}
    nisa.activation(tile, nl.exp, tile, reduce_op=nl.add, reduce_res=total, **more)
    return stored(total)


def halves(x: Any) -> tuple[int, int]:
    """This core's rows: first and count."""
    share = x.shape[0] // nl.num_programs()
    return nl.program_id(0) * share, share


@broken("core-race", lnc=2)
def both_cores_write_the_same_rows(x: Any, bad: bool) -> Any:
    out = hbm(ROWS, WIDTH)
    start, count = (0, ROWS) if bad else halves(x)
    nisa.dma_copy(dst=out[start : start + count, :], src=x[start : start + count, :])
    return out


@broken("core-race", lnc=2)
def shares_that_overlap_by_a_row(x: Any, bad: bool) -> Any:
    out = hbm(ROWS, WIDTH)
    start, count = halves(x)
    first = start - nl.program_id(0) if bad else start
    nisa.dma_copy(dst=out[first : start + count, :], src=x[first : start + count, :])
    return out


@broken("core-race", lnc=2)
def the_first_half_is_read_without_a_barrier(x: Any, bad: bool) -> Any:
    shared, out = hbm(ROWS, WIDTH), hbm(ROWS, WIDTH)
    start, count = halves(x)
    nisa.dma_copy(dst=shared[start : start + count, :], src=x[start : start + count, :])
    if not bad:
        nisa.core_barrier(shared, (0, 1))
    nisa.dma_copy(dst=out[start : start + count, :], src=shared[0:count, :])
    return out


@broken("core-race", lnc=2)
def a_barrier_on_another_tensor(x: Any, bad: bool) -> Any:
    shared, out = hbm(ROWS, WIDTH), hbm(ROWS, WIDTH)
    start, count = halves(x)
    nisa.dma_copy(dst=shared[start : start + count, :], src=x[start : start + count, :])
    nisa.core_barrier(out if bad else shared, (0, 1))
    other = ROWS // 2 - start
    nisa.dma_copy(dst=out[other : other + count, :], src=shared[other : other + count, :])
    return out


@broken("core-race", lnc=2)
def an_argument_is_overwritten_while_it_is_read(x: Any, bad: bool) -> Any:
    out = hbm(ROWS, WIDTH)
    start, count = halves(x)
    nisa.dma_copy(dst=out[start : start + count, :], src=x[start : start + count, :])
    first = 0 if bad else start
    nisa.dma_copy(dst=x[first : first + count, :], src=out[start : start + count, :])
    return out


@broken("core-deadlock", lnc=2)
def a_barrier_on_one_core_only(x: Any, bad: bool) -> Any:
    out = hbm(ROWS, WIDTH)
    start, count = halves(x)
    nisa.dma_copy(dst=out[start : start + count, :], src=x[start : start + count, :])
    if not bad or nl.program_id(0) == 0:
        nisa.core_barrier(out, (0, 1))
    return out


@broken("core-deadlock", lnc=2)
def an_exchange_with_oneself_only(x: Any, bad: bool) -> Any:
    me = nl.program_id(0)
    tile, got = rows(x, 4), sb(4, WIDTH)
    nisa.sendrecv(tile, got, me if bad else 1 - me, 1 - me, 0)
    out = hbm(8, WIDTH)
    nisa.dma_copy(dst=out[4 * me : 4 * me + 4, :], src=got)
    return out


@broken("core-divergence", lnc=2)
def shared_tensors_in_another_order(x: Any, bad: bool) -> Any:
    turned = bad and nl.program_id(0) == 1
    one, two = hbm(*((8, 4) if turned else (4, 8))), hbm(*((4, 8) if turned else (8, 4)))
    if nl.program_id(0) == 0:
        nisa.dma_copy(dst=one, src=x[0:4, 0:8])
        nisa.dma_copy(dst=two, src=x[0:8, 0:4])
    return one, two


@broken("launch")
def a_barrier_without_another_core(x: Any, bad: bool) -> Any:
    out = stored(rows(x))
    if bad:
        nisa.core_barrier(out, (0, 1))
    return out
