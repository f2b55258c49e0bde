"""The rope kernels in simulation, against float64, and bit for bit against torch.

Products, sums and casts are correctly rounded on both sides, so plain RoPE has to be torch's bits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neuron_autoport import kernels as NK
from tests.kernels import bounds
from tests.kernels.conftest import OnDevice
from tests.kernels.data import DTYPES, generator, rows, tables, weight

EPS = 1e-5
STYLES = ("half", "interleaved", "deinterleave")
# shape of x, of cos, unsqueeze_dim, rotary width (None: that of cos)
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int | None]] = {
    "heads first": ((2, 3, 130, 16), (2, 130, 16), 1, None),
    "heads last": ((2, 130, 3, 16), (2, 130, 16), 2, None),
    "one table for all": ((2, 3, 5, 16), (1, 5, 16), 1, None),
    "tokens first, no batch": ((131, 5, 16), (131, 16), 1, None),
    "counted from the end": ((2, 7, 5, 16), (2, 7, 16), -2, None),
    "batch without a table": ((3, 4, 9, 16), (9, 16), 0, None),
    "one token": ((1, 32, 1, 64), (1, 1, 64), 1, None),
    "partial": ((2, 3, 130, 24), (2, 130, 6), 1, None),
    "half-width tables": ((2, 6, 3, 16), (2, 6, 8), 2, 16),
    "partial, half-width tables": ((9, 3, 24), (9, 5), 1, 10),
    "more heads than one tile": ((1, 70, 4, 128), (1, 4, 128), 1, None),
}


def case(layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    shape, table, axis, width = LAYOUTS[layout]
    x = rows(*shape, kind="outliers", dtype=dtype)
    cos, sin = tables(*table, dtype=dtype)
    return x, cos, sin, {"rotary_dim": width, "unsqueeze_dim": axis}


def exact_rope(x: bounds.Exact, cos: Tensor, sin: Tensor, style: str, **rest: Any) -> bounds.Exact:
    """Float64, with the tables spread to full width and over the heads by hand."""
    width, axis = rest["rotary_dim"], rest["unsqueeze_dim"]
    if width is not None and cos.shape[-1] != width:
        spread = [torch.cat((t, t), -1) for t in (cos, sin)]
        if style == "interleaved":
            spread = [t.repeat_interleave(2, -1) for t in (cos, sin)]
        cos, sin = spread
    cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
    return bounds.rope(x, cos, sin, style, rest["dtype"], rest["in_fp32"])


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rope(on_device: OnDevice, layout: str, dtype: torch.dtype, lnc: int) -> None:
    x, cos, sin, options = case(layout, dtype)
    zero = torch.zeros(x.shape, dtype=torch.float64)
    for style in STYLES:
        for fp32 in (False, True) if lnc == 1 else (False,):
            got = on_device("rope", x, cos, sin, style, lnc=lnc, in_fp32=fp32, **options)
            assert got.dtype == dtype
            want = NK.rope(x, cos, sin, style, in_fp32=fp32, **options)
            if fp32 and style == "interleaved" and "half-width" in layout:
                torch.testing.assert_close(got, want)  # complex products on the CPU
            else:
                assert torch.equal(got, want)
            exact = exact_rope(
                (x.double(), zero), cos, sin, style, dtype=dtype, in_fp32=fp32, **options
            )
            bounds.check(got, exact, f"{style} {fp32}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["heads first", "heads last", "partial", "half-width tables"])
def test_rope_with_float32_tables(on_device: OnDevice, layout: str, dtype: torch.dtype) -> None:
    """As OLMo has it: tables in float32 whatever the heads are, one rounding at the end."""
    x, cos, sin, options = case(layout, torch.float32)
    x = x.to(dtype)
    zero = torch.zeros(x.shape, dtype=torch.float64)
    got = on_device("rope", x, cos, sin, lnc=2, in_fp32=True, **options)
    assert got.dtype == dtype
    assert torch.equal(got, NK.rope(x, cos, sin, **options).to(dtype))  # promoted, then rounded
    exact = exact_rope((x.double(), zero), cos, sin, "half", dtype=dtype, in_fp32=True, **options)
    bounds.check(got, exact, layout)


NORMS: list[dict[str, Any]] = [
    {},
    {"weight_in_fp32": True},
    {"weight_in_fp32": True, "offset": 1.0, "in_fp32": True},
]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["heads first", "heads last", "partial", "one token"])
def test_qk_norm_rope(on_device: OnDevice, layout: str, dtype: torch.dtype, lnc: int) -> None:
    q, cos, sin, options = case(layout, dtype)
    heads = 2 if options["unsqueeze_dim"] == 2 else 1
    k = rows(*q.shape, kind="near_zero", dtype=dtype).narrow(heads, 0, 1).contiguous()
    for norm in NORMS if lnc == 1 else NORMS[:1]:
        for style in STYLES:
            weights = weight(q.shape[-1], dtype, "q"), weight(q.shape[-1], dtype, "k")
            got = on_device(
                "qk_norm_rope",
                q,
                k,
                *weights,
                cos,
                sin,
                EPS,
                style=style,
                lnc=lnc,
                **norm,
                **options,
            )
            form = {name: norm[name] for name in norm if name != "in_fp32"}
            for x, w, y in zip((q, k), weights, got, strict=True):
                normed = bounds.rms(x, w, EPS, **form)
                fp32 = norm.get("in_fp32", False)
                exact = exact_rope(normed, cos, sin, style, dtype=dtype, in_fp32=fp32, **options)
                bounds.check(y, exact, f"{norm} {style}")


def test_qk_norm_rope_without_weights(on_device: OnDevice) -> None:
    q, cos, sin, options = case("heads first", torch.float32)
    k = q[:, :1].contiguous()
    got = on_device("qk_norm_rope", q, k, None, weight(16), cos, sin, EPS, **options)
    for x, w, y in zip((q, k), (None, weight(16)), got, strict=True):
        normed = bounds.rms(x, w, EPS)
        bounds.check(
            y, exact_rope(normed, cos, sin, "half", dtype=x.dtype, in_fp32=False, **options)
        )


def test_the_norm_is_rounded_before_the_rotation(on_device: OnDevice) -> None:
    """As on two lines of torch; one rounding less would show in many places in bfloat16."""
    q, cos, sin, options = case("heads last", torch.bfloat16)
    k = q[:, :, :1].contiguous()
    w = weight(16, torch.bfloat16)
    got, _ = on_device("qk_norm_rope", q, k, w, w, cos, sin, EPS, **options)
    want, _ = NK.qk_norm_rope(q, k, w, w, cos, sin, EPS, **options)
    assert (got != want).float().mean() < 1e-3
    wide = NK.rms_norm(q.double().float(), w.float(), EPS)
    once = NK.rope(wide, cos.float(), sin.float(), **options).to(torch.bfloat16)
    assert (once != want).float().mean() > 0.1


def test_random_layouts_agree_with_each_other(on_device: OnDevice) -> None:
    """[B, N, T, D] and [B, T, N, D] of the same heads give the same numbers."""
    x = torch.randn(2, 5, 140, 32, generator=generator("layouts"))
    cos, sin = tables(2, 140, 32)
    first = on_device("rope", x, cos, sin, unsqueeze_dim=1, lnc=2)
    turned = x.transpose(1, 2).contiguous()
    last = on_device("rope", turned, cos, sin, unsqueeze_dim=2, lnc=2)
    assert torch.equal(first.transpose(1, 2), last)
