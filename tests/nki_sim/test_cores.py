"""Two cores: what they share, how they wait, and that a launch does the same every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.nki_sim.access import values
from tests.nki_sim.errors import SimError
from tests.nki_sim.namespace import OURS, nisa, nki, nl
from tests.nki_sim.runner import last_launch
from tests.nki_sim.single import BF16, normal

ours = pytest.mark.skipif(not OURS, reason="asks the simulator of this folder")


@nki.jit
def numbered(x: Any) -> Any:
    """Rows of zeros, each core's share set to its number + 1."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    share = x.shape[0] // nl.num_programs(0)
    first = nl.program_id(0) * share
    tile = nl.ndarray((share, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=nl.program_id(0) + 1.0)
    nisa.dma_copy(dst=out[first : first + share, :], src=tile)
    return out


def test_programs_are_numbered() -> None:
    x = np.zeros((6, 2), np.float32)
    assert nki.simulate(numbered)(x)[:, 0].tolist() == [1] * 6
    assert nki.simulate(numbered[1])(x)[:, 0].tolist() == [1] * 6
    assert nki.simulate(numbered[2])(x)[:, 0].tolist() == [1, 1, 1, 2, 2, 2]


@nki.jit
def total(x: Any) -> Any:
    """The sum of all rows on both cores: each sums half and they meet in shared memory."""
    half, width = x.shape[0] // 2, x.shape[1]
    me = nl.program_id(0)
    part = nl.ndarray((2, width), dtype=nl.float32, buffer=nl.shared_hbm)
    out = nl.ndarray((2, width), dtype=nl.float32, buffer=nl.shared_hbm)
    ones = nl.ndarray((half, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    rows = nl.ndarray((half, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x[me * half : me * half + half, :])
    column = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(column, ones, rows, accumulate=False)
    mine = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=mine, src=column)
    nisa.dma_copy(dst=part[me : me + 1, :], src=mine)
    nisa.core_barrier(part, (0, 1))
    both = nl.ndarray((2, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=both, src=part)
    pair = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(pair, ones[0:2, :], both, accumulate=False)
    nisa.tensor_copy(dst=mine, src=pair)
    nisa.dma_copy(dst=out[me : me + 1, :], src=mine)
    return out


def test_a_barrier_makes_the_other_core_visible() -> None:
    x = normal(50, 9)
    got = nki.simulate(total[2])(x)
    want = x.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(got, np.stack([want, want]), atol=1e-5)


@nki.jit
def swapped(x: Any) -> Any:
    """Row 0 and row 1 exchanged between the cores' SBUF."""
    me = nl.program_id(0)
    mine = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    other = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=mine, src=x[me : me + 1, :])
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[me : me + 1, :], src=other)
    return out


def test_sendrecv_exchanges_tiles() -> None:
    x = normal(2, 5, dtype=BF16)
    assert (nki.simulate(swapped[2])(x) == x[::-1]).all()


@ours
def test_a_launch_does_the_same_every_time() -> None:
    x = normal(50, 9)
    first = nki.simulate(total[2])(x)
    counts = [dict(core.instructions) for core in last_launch().cores]
    assert counts[0] == counts[1]
    assert counts[0]["core_barrier"] == 1
    for _ in range(5):
        assert (nki.simulate(total[2])(x) == first).all()
        assert [dict(core.instructions) for core in last_launch().cores] == counts


@ours
def test_memory_in_use_is_counted() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for row in range(4):
            tile = nl.ndarray((1, 1000), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[row : row + 1, :])
            nisa.dma_copy(dst=out[row : row + 1, :], src=tile)
        product = nl.ndarray((1, 600), dtype=nl.float32, buffer=nl.psum)
        nisa.memset(dst=product, value=0.0)
        return out

    nki.simulate(kernel)(normal(4, 1000))
    peak = {region.value: size for region, size in last_launch().cores[0].peak.items()}
    # Two tiles of a loop at a time; 2400 bytes of PSUM are two banks.
    assert peak == {"sbuf": 8000, "psum": 4096}


@ours
def test_fresh_memory_is_nan_and_four() -> None:
    @nki.jit
    def kernel() -> None:
        for dtype in (nl.float32, nl.bfloat16, nl.float8_e5m2):
            assert np.isnan(values(nl.ndarray((2, 3), dtype=dtype)).astype(np.float32)).all()
        assert (values(nl.ndarray((2, 3), dtype=nl.int16, buffer=nl.shared_hbm)) == 4).all()

    kernel()


@ours
def test_an_error_on_one_core_ends_both() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 1:
            raise ZeroDivisionError("of the kernel")
        nisa.core_barrier(out, (0, 1))
        return out

    with pytest.raises(ZeroDivisionError, match="of the kernel"):
        nki.simulate(kernel[2])(normal(4, 4))
    with pytest.raises(SimError, match="outside of a kernel"):
        nl.ndarray((2, 2), dtype=nl.float32)


@ours
@pytest.mark.parametrize("cores", [0, 3, 8])
def test_more_cores_than_there_are(cores: int) -> None:
    with pytest.raises(SimError, match="launch"):
        numbered[cores](normal(6, 2))


def test_torch_tensors_in_and_out() -> None:
    x = torch.randn(6, 3, dtype=torch.bfloat16)

    @nki.jit
    def kernel(x: Any, scale: float, names: Any = None) -> Any:
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(tile, tile, nl.multiply, scale)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        flags = nl.ndarray((6, 3), dtype=nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        nisa.dma_copy(dst=flags, src=tile)
        return out, flags

    out, flags = nki.simulate(kernel)(x, scale=2.0, names=("a", 3, None))
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, x * 2)
    assert flags.dtype == torch.int32
    assert torch.equal(flags, (x * 2).float().round().int())


@ours
@pytest.mark.parametrize(
    "value", [[1, 2], {"a": 1}, np.float32, torch.zeros(2, 4).T, torch.zeros(2, dtype=torch.int64)]
)
def test_arguments_a_kernel_cannot_have(value: Any) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        return None

    with pytest.raises(SimError, match=r"argument|dtype-exists"):
        kernel(value)
