"""DMA: copies with casts, gathers, scatters, transposes, sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.nki_sim.namespace import nisa, nki, nl
from tests.nki_sim.single import BF16, integers, issue, normal


def launch(kernel: Any, *arrays: Any, lnc: int = 1) -> Any:
    return nki.simulate(nki.jit(kernel)[lnc])(*arrays)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16, np.int8, np.uint16])
def test_copies_cast_through_float32(dtype: Any) -> None:
    x = normal(70, 9, scale=200)

    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=getattr(nl, np.dtype(dtype).name), buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    got = launch(kernel, x)
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        assert (got == np.clip(np.rint(x), limits.min, limits.max)).all()
    else:
        assert (got == x.astype(dtype)).all()


def test_one_row_on_all_partitions() -> None:
    def kernel(row: Any) -> Any:
        tile = nl.ndarray((128, 5), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=row.ap(pattern=[[0, 128], [1, 5]], offset=2))
        out = nl.ndarray((128, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    row = normal(7)
    assert (launch(kernel, row) == np.tile(row[2:7], (128, 1))).all()


def gather(skip: bool) -> Any:
    def kernel(x: Any, index: Any) -> Any:
        count, width = index.shape[0], x.shape[1]
        idx = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=idx, src=index)
        rows = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=rows, value=-1.0)
        mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
        source = x.ap(pattern=[[width, count], [1, width]], vector_offset=idx, indirect_dim=0)
        nisa.dma_copy(dst=rows, src=source, oob_mode=mode)
        out = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=rows)
        return out

    return kernel


def test_gather_and_gather_that_skips() -> None:
    x = normal(40, 6)
    index = integers(17, 1, low=0, high=40, dtype=np.int32)
    assert (launch(gather(skip=False), x, index) == x[index[:, 0]]).all()
    index[3] = index[16] = 40
    want = np.where(index < 40, x[np.minimum(index[:, 0], 39)], -1.0)
    assert (launch(gather(skip=True), x, index) == want).all()


def test_scatter_and_vector_select() -> None:
    def kernel(x: Any, index: Any, out: Any) -> Any:
        idx = nl.ndarray((4, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=idx, src=index)
        rows = nl.ndarray((4, 3), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x)
        nisa.dma_copy(dst=out.vector_select(0, idx), src=rows)
        return None

    x, out = normal(4, 3), np.zeros((9, 3), np.float32)
    index = np.array([[8], [0], [5], [3]], np.int32)
    launch(kernel, x, index, out)
    want = np.zeros((9, 3), np.float32)
    want[index[:, 0]] = x
    assert (out == want).all()  # the caller's array was written


def test_offsets_from_registers() -> None:
    def kernel(x: Any, at: Any) -> Any:
        column = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=column, src=at)
        register = nisa.register_alloc()
        nisa.register_load(register, column)
        out = nl.ndarray((2, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[0:1, :], src=x.select(0, register))
        row = x.ap(pattern=[[1, 1], [1, 4]], scalar_offset=column, indirect_dim=0)
        nisa.dma_copy(dst=out[1:2, :], src=row)
        return out

    x = normal(5, 4)
    got = launch(kernel, x, np.array([[3]], np.int32))
    assert (got == x[[3, 3]]).all()


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((40, 64), (1, 0)), ((3, 5, 16), (2, 1, 0)), ((2, 3, 4, 128), (3, 1, 2, 0))],
)
def test_dma_transpose(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    def kernel(x: Any) -> Any:
        turned = nl.ndarray([shape[a] for a in axes], dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=turned, src=x, axes=axes)
        out = nl.ndarray(turned.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=turned)
        return out

    x = normal(*shape, dtype=BF16)
    assert (launch(kernel, x) == x.transpose(axes)).all()


def test_dma_compute_adds_in_float32() -> None:
    def kernel(a: Any, b: Any, c: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_compute(out, [a, b, c], reduce_op=nl.add)
        return out

    parts = [normal(6, 7, seed=s, dtype=BF16) for s in range(3)]
    want = sum(p.astype(np.float64) for p in parts)
    assert (launch(kernel, *parts) == np.asarray(want).astype(BF16)).all()


def test_shuffle_within_32_partitions() -> None:
    x, old = normal(64, 3), normal(64, 3, seed=1)
    mask = [(7 * i) % 32 for i in range(32)]
    mask[5] = 255

    def action(t: dict[str, Any]) -> None:
        nisa.tensor_copy(t["dst"], t["old"])
        nisa.nc_stream_shuffle(t["dst"], t["x"], mask)

    want = old.copy()
    for first in (0, 32):
        for at, source in enumerate(mask):
            want[first + at] = old[first + at] if source == 255 else x[first + source]
    assert (issue(action, ((64, 3), np.float32), x=x, old=old) == want).all()
