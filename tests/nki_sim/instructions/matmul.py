"""The Tensor engine: matrix products and transposes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nki_sim.access import UNWRITTEN, matmul_state, read, write
from tests.nki_sim.dtypes import F32, is_integer
from tests.nki_sim.enums import engine as engines
from tests.nki_sim.enums import matmul_perf_mode
from tests.nki_sim.errors import demand
from tests.nki_sim.hardware import (
    MATMUL_MOVING,
    MATMUL_ROWS,
    MATMUL_STATIONARY,
    PSUM_BANK_BYTES,
    QUADRANT,
)
from tests.nki_sim.operands import PSUM, SBUF, floats, instruction, on_engine, rows, tile
from tests.nki_sim.storage import Region, Storage
from tests.nki_sim.tensor import NkiTensor, as_tensor

PARTS = (32, 64, 128)


@instruction
def nc_matmul(
    dst: Any,
    stationary: Any,
    moving: Any,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: Any = matmul_perf_mode.none,
    name: Any = None,
) -> None:
    """dst [M, N] (+)= stationary [K, M].T @ moving [K, N], summed in float32.

    With `is_transpose` the moving tile is an identity matrix, and dst has the type of the stationary
    one, bit for bit. `tile_size` and `tile_position` take a part of the array's rows and columns.
    """
    plain_mode = perf_mode in (matmul_perf_mode.none, "none")
    demand(plain_mode, "not-simulated", f"nc_matmul with {perf_mode}")
    out = tile(dst, "dst", PSUM)
    left, right = tile(stationary, "stationary", SBUF), tile(moving, "moving", SBUF)
    k, m = left.shape[0], left.size // left.shape[0]
    n = right.size // right.shape[0]
    demand(right.shape[0] == k, "operand-shape", f"nc_matmul of {left} and {right}")
    most_k, most_m = _array_part(tuple(tile_size), tuple(tile_position))
    small = k <= most_k and m <= most_m and n <= MATMUL_MOVING
    demand(small, "matmul-tile", f"nc_matmul of {left} and {right}")
    demand(out.shape[0] == m and out.size == m * n, "operand-shape", f"nc_matmul into {out}")
    one_bank(out)
    if is_transpose:
        _turn(out, left, right)
        return
    _check_types(out, left, right)
    product = floats(left).T @ floats(right)
    if _accumulates(out, accumulate):
        product = product + read(out).reshape(m, n).astype(F32)
    write(out, product, matmul=True)


def _array_part(size: tuple[int, ...], position: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the part of the 128 x 128 array that an instruction asks for."""
    if not size and not position:
        return MATMUL_ROWS, MATMUL_STATIONARY
    pairs = list(zip(size, position, strict=False))
    legal = len(size) == len(position) == 2 and all(
        part in PARTS and start % part == 0 and 0 <= start < MATMUL_ROWS for part, start in pairs
    )
    demand(legal, "matmul-tile", f"tile_size {size} with tile_position {position}")
    return size[0], size[1]


def _turn(out: NkiTensor, left: NkiTensor, right: NkiTensor) -> None:
    """dst = stationary transposed; moving has to be an identity matrix."""
    identity = bool((floats(right) == np.eye(right.shape[0], dtype=F32)).all())
    demand(identity, "transpose-shape", f"nc_matmul transposes with {right}, no identity")
    demand(out.dtype == left.dtype, "operand-dtype", f"nc_matmul transposes {left} into {out}")
    write(out, rows(left).T)


def _check_types(out: NkiTensor, left: NkiTensor, right: NkiTensor) -> None:
    numbers = not (is_integer(left.dtype) or is_integer(right.dtype))
    demand(numbers, "operand-dtype", f"nc_matmul of {left} and {right}")
    both = (left.dtype == "float32") == (right.dtype == "float32")
    demand(
        both, "operand-dtype", f"nc_matmul of {left} and {right}: float32 goes with float32 only"
    )
    demand(out.dtype == "float32", "operand-dtype", f"nc_matmul into {out}: the sum is float32")


def one_bank(out: NkiTensor) -> None:
    """Refuse a result that spans PSUM banks. Tiles start on a bank."""
    free = zip(out.shape[1:], out.strides[1:], strict=True)
    first = out.offset % out.storage.partition_size
    last = first + sum((n - 1) * s for n, s in free)
    banks = [place * out.itemsize // PSUM_BANK_BYTES for place in (first, last)]
    demand(banks[0] == banks[1], "psum-bank", f"{out} lies in banks {banks[0]} to {banks[1]}")


def _accumulates(out: NkiTensor, accumulate: bool | None) -> bool:
    """Whether the product is added to what `out` holds.

    Left out, the first product replaces and the next ones add; once the tile was read in between,
    it is not plain what was meant.
    """
    states = matmul_state(out)
    if accumulate is None:
        plain = states in ({UNWRITTEN}, {Storage.MATMUL})
        demand(plain, "accumulate-unclear", f"nc_matmul into {out} without a flag")
        return states == {Storage.MATMUL}
    demand(isinstance(accumulate, bool), "operand-kind", f"accumulate is {accumulate!r}")
    if accumulate:
        by_matmul = states <= {Storage.MATMUL, Storage.MATMUL_READ}
        demand(by_matmul, "accumulate", f"nc_matmul adds to {out}, which no matmul began")
    return accumulate


@instruction
def nc_transpose(dst: Any, data: Any, engine: Any = None, name: Any = None) -> None:
    """dst [F, P] = data [P, F] turned: up to 128 x 128 to PSUM on Tensor, 32 x 32 on Vector."""
    src = tile(data, "data")
    partitions, free = src.shape[0], src.size // src.shape[0]
    small = max(partitions, free) <= QUADRANT
    chosen = on_engine(engine, (engines.tensor, engines.vector), "nc_transpose")
    if chosen is engines.unknown and small and as_tensor(dst, "dst").buffer is not Region.psum:
        chosen = engines.vector
    if chosen is engines.vector:
        demand(small, "transpose-shape", f"nc_transpose of {src} on the Vector engine")
        out = tile(dst, "dst")
    else:
        src = tile(data, "data", SBUF)
        demand(free <= MATMUL_STATIONARY, "transpose-shape", f"nc_transpose of {src}")
        out = tile(dst, "dst", PSUM)
        one_bank(out)
    demand(out.dtype == src.dtype, "operand-dtype", f"nc_transpose of {src} into {out}")
    fits = out.shape[0] == free and out.size == src.size
    demand(fits, "transpose-shape", f"nc_transpose of {src} into {out}")
    write(out, rows(src).T)
