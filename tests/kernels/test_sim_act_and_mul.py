"""The gate kernel in simulation, against float64 with every rounding counted, and against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neuron_autoport import kernels as NK
from neuron_autoport.kernels.act_and_mul import KINDS as ACTS
from tests.kernels import bounds
from tests.kernels.conftest import OnDevice
from tests.kernels.data import DTYPES, generator

SHAPES = [(1, 5), (3, 43, 40), (257, 24), (2, 4100)]


def pair(shape: tuple[int, ...], dtype: torch.dtype, scale: float) -> tuple[Tensor, Tensor]:
    """gate and up, with zeros, both signs of a large value, and values next to the clamps."""
    source = generator("gate", shape, scale)
    gate, up = (torch.randn(*shape, generator=source) * scale for _ in range(2))
    special = torch.tensor([0.0, -0.0, 20.0, -20.0, 7.0, -7.0, 7.03125, 6.96875])
    flat = gate.view(-1)
    flat[: min(8, len(flat))] = special[: len(flat)]
    up.view(-1)[-8:] = special[: min(8, len(flat))]
    return gate.to(dtype), up.to(dtype)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ACTS)
def test_act_and_mul(on_device: OnDevice, kind: str, dtype: torch.dtype, lnc: int) -> None:
    for shape in SHAPES:
        large = 30.0 if dtype != torch.float16 else 9.0  # relu2 * up has to fit
        for scale, limit in ((1.0, None), (6.0, 7.0), (1e-4, None), (large, None)):
            gate, up = pair(shape, dtype, scale)
            got = on_device("act_and_mul", gate, up, kind, lnc=lnc, limit=limit)
            assert got.dtype == dtype
            bounds.check(got, bounds.gate(gate, up, kind, limit), f"{shape} {scale} {limit}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_relu2_is_torch_bit_for_bit(on_device: OnDevice, dtype: torch.dtype) -> None:
    """No function of the Scalar engine takes part, so nothing may differ."""
    gate, up = pair((130, 200), dtype, 5.0)
    for limit in (None, 4.7):  # 4.7 is no number of any of these dtypes
        got = on_device("act_and_mul", gate, up, "relu2", limit=limit)
        assert torch.equal(got, NK.act_and_mul(gate, up, "relu2", limit=limit))


@pytest.mark.parametrize("kind", ["silu", "clamped_swiglu"])
def test_bfloat16_rounds_where_torch_rounds(on_device: OnDevice, kind: str) -> None:
    """With one rounding at the end instead, every second value would differ."""
    gate, up = pair((130, 200), torch.bfloat16, 3.0)
    options: dict[str, Any] = {"alpha": 1.5, "limit": 7.0} if kind == "clamped_swiglu" else {}
    got = on_device("act_and_mul", gate, up, kind, **options)
    want = NK.act_and_mul(gate, up, kind, **options)
    exact, _ = bounds.gate(gate, up, kind, options.get("limit"), options.get("alpha", 1.702))
    assert (got != want).float().mean() < 0.01
    assert (exact.to(torch.bfloat16) != want).float().mean() > 0.1
