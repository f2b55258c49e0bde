"""Faults with types, operators and values, and names that are not there."""

from __future__ import annotations

from typing import Any

from tests.nki_sim.broken.case import WIDTH, broken, filled, hbm, ps, rows, sb, stored
from tests.nki_sim.namespace import nisa, nl


@broken("operand-dtype")
def float32_times_bfloat16(x: Any, bad: bool) -> Any:
    right = rows(x, dtype=nl.bfloat16 if bad else nl.float32)
    nisa.nc_matmul(ps(WIDTH, WIDTH), rows(x), right, accumulate=False)
    return stored(rows(x))


@broken("operand-dtype")
def a_product_in_bfloat16(x: Any, bad: bool) -> Any:
    total = ps(WIDTH, WIDTH, dtype=nl.bfloat16 if bad else nl.float32)
    nisa.nc_matmul(total, rows(x), rows(x), accumulate=False)
    return stored(rows(x))


@broken("operand-dtype")
def a_transpose_that_casts(x: Any, bad: bool) -> Any:
    turned = ps(WIDTH, 128, dtype=nl.bfloat16 if bad else nl.float32)
    nisa.nc_transpose(turned, rows(x))
    return stored(rows(x))


@broken("operand-dtype")
def bits_of_a_float(x: Any, bad: bool) -> Any:
    tile = filled(4, 8) if bad else filled(4, 8, value=1, dtype=nl.int32)
    nisa.tensor_scalar(tile, tile, nl.bitwise_or, 3)
    return stored(tile)


@broken("operand-dtype")
def a_float_into_an_integer_tile(x: Any, bad: bool) -> Any:
    return stored(filled(4, 8, value=2.0 if bad else 2, dtype=nl.int32))


@broken("operand-dtype")
def a_predicate_of_floats(x: Any, bad: bool) -> Any:
    tile = rows(x)
    mask = filled(128, WIDTH, value=1, dtype=nl.float32 if bad else nl.uint8)
    nisa.tensor_copy_predicated(tile, 0.0, mask)
    return stored(tile)


@broken("operand-dtype")
def dma_transpose_of_four_bytes(x: Any, bad: bool) -> Any:
    kind = nl.float32 if bad else nl.bfloat16
    turned = sb(WIDTH, 16, dtype=kind)
    nisa.dma_transpose(dst=turned, src=rows(x, 16, dtype=kind))
    return stored(turned)


@broken("operator")
def a_division(x: Any, bad: bool) -> Any:
    tile = rows(x)
    nisa.tensor_scalar(tile, tile, nl.divide if bad else nl.multiply, 2.0)
    return stored(tile)


@broken("operator")
def a_function_as_vector_operator(x: Any, bad: bool) -> Any:
    tile = rows(x)
    nisa.tensor_scalar(tile, tile, nl.exp if bad else nl.square, 0.0)
    return stored(tile)


@broken("operator")
def bits_chained_with_arithmetic(x: Any, bad: bool) -> Any:
    tile = filled(4, 8, value=1, dtype=nl.int32)
    second = nl.add if bad else nl.bitwise_xor
    nisa.tensor_scalar(tile, tile, nl.bitwise_or, 3, op1=second, operand1=1)
    return stored(tile)


@broken("operator")
def a_subtraction_on_the_scalar_engine(x: Any, bad: bool) -> Any:
    tile, engine = rows(x), nisa.engine.scalar
    nisa.tensor_scalar(tile, tile, nl.subtract if bad else nl.add, 1.0, engine=engine)
    return stored(tile)


@broken("operator")
def maxima_from_activation(x: Any, bad: bool) -> Any:
    tile, top = rows(x), sb(128, 1)
    operator = nl.maximum if bad else nl.add
    nisa.activation_reduce(tile, nl.exp, tile, operator, top)
    return stored(top)


@broken("partition-start")
def sixty_five_partitions_from_the_middle(x: Any, bad: bool) -> Any:
    tile = rows(x)
    part = tile[63:128, :] if bad else tile[64:128, :]
    nisa.tensor_scalar(part, part, nl.add, 1.0)
    return stored(tile)


@broken("partition-start")
def forty_partitions_from_a_quadrant(x: Any, bad: bool) -> Any:
    tile = rows(x)
    part = tile[32 : 72 if bad else 64, :]
    nisa.tensor_scalar(part, part, nl.add, 1.0)
    return stored(tile)


@broken("vector-operand")
def a_row_as_scalar_operand(x: Any, bad: bool) -> Any:
    tile = rows(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, filled(1, WIDTH) if bad else filled(128, 1))
    return stored(tile)


@broken("vector-operand")
def a_bfloat16_scale(x: Any, bad: bool) -> Any:
    tile = rows(x)
    scale = filled(128, 1, dtype=nl.bfloat16 if bad else nl.float32)
    nisa.activation(tile, nl.copy, tile, scale=scale)
    return stored(tile)


@broken("function-domain")
def a_sine_of_a_large_angle(x: Any, bad: bool) -> Any:
    tile = filled(2, 3, value=9.0 if bad else 3.0)
    nisa.activation(tile, nl.sin, tile)
    return stored(tile)


@broken("function-domain")
def the_root_of_nothing(x: Any, bad: bool) -> Any:
    """A mean of squares without epsilon: a row of zeros ends here."""
    tile = filled(2, 3, value=0.0)
    nisa.activation(tile, nl.rsqrt, tile, bias=0.0 if bad else 1e-6)
    return stored(tile)


@broken("reduce-axis")
def a_sum_over_partitions(x: Any, bad: bool) -> Any:
    total = sb(128, 1)
    nisa.tensor_reduce(total, nl.add, rows(x), axis=0 if bad else 1)
    return stored(total)


@broken("reduce-axis")
def a_sum_over_a_middle_axis(x: Any, bad: bool) -> Any:
    tile = rows(x).reshape((128, 8, 8))
    total = sb(128, 8)
    nisa.tensor_reduce(total, nl.add, tile, axis=1 if bad else 2)
    return stored(total)


@broken("dma-shape")
def a_copy_of_unequal_length(x: Any, bad: bool) -> Any:
    tile = sb(128, 32 if bad else WIDTH)
    nisa.dma_copy(dst=tile, src=x[0:128, :])
    return stored(tile)


@broken("index-range")
def a_gathered_row_that_is_not_there(x: Any, bad: bool) -> Any:
    index = filled(2, 1, value=200 if bad else 199, dtype=nl.int32)
    tile = sb(2, WIDTH)
    nisa.dma_copy(dst=tile, src=x.ap([[WIDTH, 2], [1, WIDTH]], vector_offset=index))
    return stored(tile)


@broken("not-simulated")
def an_instruction_the_simulator_has_not(x: Any, bad: bool) -> Any:
    tile = rows(x)
    if bad:
        nisa.dropout(tile, tile, 0.5)
    return stored(tile)


@broken("newer-core")
def an_instruction_of_trainium_3(x: Any, bad: bool) -> Any:
    tile = rows(x)
    if bad:
        nisa.exponential(tile, tile)
    else:
        nisa.activation(tile, nl.exp, tile)
    return stored(tile)


@broken("argument")
def the_truth_of_a_tensor(x: Any, bad: bool) -> Any:
    tile = rows(x)
    if bad and tile:
        return hbm(1)
    return stored(tile)


@broken("register-in-python")
def python_asks_a_register(x: Any, bad: bool) -> Any:
    tile, register = rows(x), nisa.register_alloc(2)

    def body(index: Any) -> None:
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)

    if bad:
        for index in range(register):
            body(index)
    else:
        nl.fori_loop(0, register, body)
    return stored(tile)
