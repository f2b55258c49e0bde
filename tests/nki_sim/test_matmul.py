"""The Tensor engine against NumPy in float64: products, their accumulation, transposes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.nki_sim.namespace import nisa, nki, nl
from tests.nki_sim.single import BF16, Array, Tiles, close, integers, issue, normal

TYPES = [np.float32, BF16, np.float16, np.dtype(ml_dtypes.float8_e5m2)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("k", "m", "n"), [(128, 128, 512), (1, 1, 1), (37, 5, 130)])
def test_product(k: int, m: int, n: int, dtype: Any) -> None:
    a, b = normal(k, m, dtype=dtype), normal(k, n, seed=1, dtype=dtype)
    got = issue(
        lambda t: nisa.nc_matmul(t["dst"], t["a"], t["b"], accumulate=False),
        ((m, n), np.float32), psum=("dst",), a=a, b=b,
    )  # fmt: skip
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = 2 * np.finfo(np.float32).eps * (np.abs(wide[0]).T @ np.abs(wide[1])) + 1e-7
    assert (np.abs(got - wide[0].T @ wide[1]) <= np.sqrt(k) * bound).all()


def test_free_axes_are_flattened() -> None:
    a, b = normal(16, 3, 4), normal(16, 5, 6, seed=1)
    got = issue(
        lambda t: nisa.nc_matmul(t["dst"], t["a"], t["b"], accumulate=False),
        ((12, 30), np.float32), psum=("dst",), a=a, b=b,
    )  # fmt: skip
    close(got, a.reshape(16, 12).T.astype(float) @ b.reshape(16, 30), ulps=16)


@pytest.mark.parametrize("flags", ["explicit", "left out"])
def test_products_accumulate_over_a_long_contraction(flags: str) -> None:
    a, b = normal(300, 20), normal(300, 40, seed=1)

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        total = nl.ndarray((20, 40), dtype=nl.float32, buffer=nl.psum)
        for start in range(0, 300, 128):
            size = min(128, 300 - start)
            left = nl.ndarray((size, 20), dtype=nl.float32, buffer=nl.sbuf)
            right = nl.ndarray((size, 40), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[start : start + size, :])
            nisa.dma_copy(dst=right, src=b[start : start + size, :])
            if flags == "explicit":
                nisa.nc_matmul(total, left, right, accumulate=start > 0)
            else:
                nisa.nc_matmul(total, left, right)
        row = nl.ndarray((20, 40), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=row, src=total)
        out = nl.ndarray((20, 40), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=row)
        return out

    got = nki.simulate(kernel)(a, b)
    close(got, a.astype(np.float64).T @ b.astype(np.float64), ulps=64)


def test_overwriting_an_accumulated_tile() -> None:
    a, b = normal(8, 4), normal(8, 6, seed=1)

    def action(t: Tiles) -> None:
        nisa.nc_matmul(t["dst"], t["a"], t["b"], accumulate=False)
        nisa.nc_matmul(t["dst"], t["a"], t["b"], accumulate=True)
        nisa.nc_matmul(t["dst"], t["a"], t["b"], accumulate=False)

    got = issue(action, ((4, 6), np.float32), psum=("dst",), a=a, b=b)
    close(got, a.astype(np.float64).T @ b.astype(np.float64), ulps=8)


@pytest.mark.parametrize(
    ("shape", "dtype", "where"),
    [((100, 128), np.float32, "psum"), ((128, 3), BF16, "psum"), ((32, 32), BF16, "sbuf"),
     ((5, 31), np.int32, "sbuf"), ((17, 2, 20), np.float32, "psum")],
)  # fmt: skip
def test_transpose(shape: tuple[int, ...], dtype: Any, where: str) -> None:
    x: Array = integers(*shape, low=-99, high=99, dtype=dtype)
    if dtype is np.float32:
        x[0, ..., 0] = np.inf  # bit for bit
    flat = x.reshape(shape[0], -1)
    got = issue(
        lambda t: nisa.nc_transpose(t["dst"], t["x"]),
        (flat.T.shape, dtype), psum=("dst",) if where == "psum" else (), x=x,
    )  # fmt: skip
    assert (got == flat.T).all()


def test_transpose_mode_and_parts_of_the_array() -> None:
    x = normal(32, 20, dtype=BF16)
    x[3, 4] = np.nan

    def action(t: Tiles) -> None:
        identity = nl.shared_identity_matrix(32, dtype=nl.bfloat16)
        nisa.nc_matmul(
            t["dst"], t["x"], identity, is_transpose=True,
            tile_position=(32, 0), tile_size=(32, 128),
        )  # fmt: skip

    got = issue(action, ((20, 32), BF16), psum=("dst",), x=x)
    assert (got.view(np.uint16) == x.T.copy().view(np.uint16)).all()
