"""The norm kernels in simulation, against float64 and against their torch references.

Row counts on both sides of 128 and of the split between two cores; widths on both sides of the chunk of 2048
columns. Bounds: bounds.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neuron_autoport import kernels as NK
from tests.kernels import bounds
from tests.kernels.conftest import OnDevice
from tests.kernels.data import DTYPES, KINDS, rows, weight

EPS = 1e-5
Shapes = list[tuple[int, ...]]
SHAPES: Shapes = [(1, 8), (2, 33), (127, 64), (129, 96), (2, 150, 40), (3, 2049)]
FEW: Shapes = [(131, 64), (3, 2100)]
FORMS: list[dict[str, Any]] = [
    {"weight": False},
    {"weight": True},
    {"weight": True, "weight_in_fp32": True},
    {"weight": True, "weight_in_fp32": True, "offset": 1.0},
]
# Every dtype with plain data over all shapes; every kind of data in float32 and bfloat16 over a few.
CASES: list[tuple[torch.dtype, str, Shapes]] = [(dtype, "normal", SHAPES) for dtype in DTYPES]
CASES += [(dtype, kind, FEW) for dtype in DTYPES[:2] for kind in KINDS[1:]]
CASES += [(torch.float16, "large", FEW)]

cases = pytest.mark.parametrize(("dtype", "kind", "shapes"), CASES, ids=lambda v: str(v)[:14])
by_lnc = pytest.mark.parametrize("lnc", [1, 2])


def forms(width: int, dtype: torch.dtype) -> list[tuple[Tensor | None, dict[str, Any]]]:
    return [
        (
            weight(width, dtype) if form["weight"] else None,
            {name: value for name, value in form.items() if name != "weight"},
        )
        for form in FORMS
    ]


@by_lnc
@cases
def test_rms_norm(
    on_device: OnDevice, dtype: torch.dtype, kind: str, shapes: Shapes, lnc: int
) -> None:
    for shape in shapes:
        x = rows(*shape, kind=kind, dtype=dtype)
        for w, form in forms(shape[-1], dtype):
            if kind == "large" and dtype == torch.float16:
                w = None if w is None else w.clamp(-10, 10)  # a result has to fit float16
            got = on_device("rms_norm", x, w, EPS, lnc=lnc, **form)
            assert got.dtype == dtype
            bounds.check(got, bounds.rms(x, w, EPS, **form), f"{shape} {form}")


@by_lnc
@cases
def test_add_rms_norm(
    on_device: OnDevice, dtype: torch.dtype, kind: str, shapes: Shapes, lnc: int
) -> None:
    for shape in shapes:
        x, residual = rows(*shape, kind=kind, dtype=dtype), rows(*shape, dtype=dtype)
        for w, form in forms(shape[-1], dtype):
            got, summed = on_device("add_rms_norm", x, residual, w, EPS, lnc=lnc, **form)
            assert torch.equal(summed, residual + x)  # one rounding, the same as torch's
            # the norm reads the rounded sum, not the exact one
            bounds.check(got, bounds.rms(summed, w, EPS, **form), f"{shape} {form}")


@by_lnc
@cases
def test_layer_norm(
    on_device: OnDevice, dtype: torch.dtype, kind: str, shapes: Shapes, lnc: int
) -> None:
    for shape in shapes:
        x = rows(*shape, kind=kind, dtype=dtype)
        w, b = weight(shape[-1], dtype), weight(shape[-1], dtype, "bias")
        for scale, shift in ((None, None), (w, None), (None, b), (w, b)) if lnc == 1 else ((w, b),):
            got = on_device("layer_norm", x, scale, shift, EPS, lnc=lnc)
            bounds.check(got, bounds.layer(x, scale, shift, EPS), f"{shape}")
        got = on_device("layer_norm", x, w, b, EPS, lnc=lnc, offset=1.0, weight_in_fp32=True)
        bounds.check(got, bounds.layer(x, w, b, EPS, offset=1.0), f"{shape} 1 + w")


@pytest.mark.parametrize("mean", [1e3, 1e4])
def test_layer_norm_keeps_a_row_far_from_zero(on_device: OnDevice, mean: float) -> None:
    """A spread of 1 on a mean of 10000. mean(x^2) - mean(x)^2 in float32 would lose the variance: x^2 is
    1e8, its last bit 8."""
    x = rows(5, 4096) + mean
    exact, bound = bounds.layer(x, None, None, EPS)
    bounds.check(on_device("layer_norm", x, eps=EPS), (exact, bound))
    assert bound.max() < 1e-6 * mean  # the bound itself would not hide a lost variance


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_rounding_orders_are_those_of_torch(on_device: OnDevice, dtype: torch.dtype) -> None:
    """In 16 bits the orders give different bits. Kernel and reference may differ only where a float32
    statistic in its last bits decides a rounding: in few places, and there by one step."""
    x, w = rows(130, 320, kind="outliers", dtype=dtype), weight(320, dtype)
    results = []
    for form in ({}, {"weight_in_fp32": True}):
        got = on_device("rms_norm", x, w, EPS, **form)
        want = NK.rms_norm(x, w, EPS, **form)
        differ = got != want
        assert differ.float().mean() < 1e-3
        step = want.double().abs() * 2.01 * torch.finfo(dtype).eps
        assert ((got.double() - want.double()).abs() <= step).all()
        results.append(got)
    assert (results[0] != results[1]).float().mean() > 0.1


def test_both_cores_write_the_same_as_one(on_device: OnDevice) -> None:
    x, w = rows(301, 72), weight(72)
    one, two = (on_device("rms_norm", x, w, EPS, lnc=lnc) for lnc in (1, 2))
    assert torch.equal(one, two)
