"""The limits of the kernels as data: what they say, and that the kernels keep them and need them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from neuron_autoport import kernels as NK
from neuron_autoport.kernels import limits
from neuron_autoport.kernels.limits import KERNELS, Limit
from tests.kernels import bounds
from tests.kernels.conftest import OnDevice
from tests.nki_sim.errors import SimError


@dataclass(frozen=True)
class Facts:
    """What a plan knows of a value: a shape and the name of a dtype, no tensor."""

    shape: tuple[int, ...]
    dtype: str


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, device="meta", dtype=dtype)


def test_every_function_has_a_kernel_with_reasons() -> None:
    assert set(KERNELS) == set(NK.__all__)
    for name, kernel in KERNELS.items():
        assert kernel.title == f"neuron_autoport.{name}"
        assert kernel.evidence == "verified in simulation against torch and float64"
        assert set(kernel.phases) <= {"prefill", "decode"} and kernel.phases
        assert all(" " in limit.why and not limit.why.endswith(".") for limit in kernel.limits)


@pytest.mark.parametrize("name", NK.__all__)
def test_launch_takes_what_the_reference_takes(name: str, nki_simulator: bool) -> None:
    module = importlib.import_module(KERNELS[name].module)
    launch = list(inspect.signature(module.launch).parameters.values())[1:]
    reference = inspect.signature(getattr(NK, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in launch] == [
        (p.name, p.kind, p.default) for p in reference
    ]


CALLS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("rms_norm", {"x": meta(7, 4096), "weight": meta(4096), "eps": 1e-6}, []),
    ("rms_norm", {"x": meta(7, 4096), "weight": None}, []),
    ("rms_norm", {"x": Facts((7, 16384), "torch.bfloat16")}, []),
    (
        "rms_norm",
        {"x": Facts((7, 16385), "bfloat16")},
        ["x.shape[-1] is 16385, more than 16384: a row and the weight are held in SBUF at once"],
    ),
    (
        "rms_norm",
        {"x": meta(7, 64, dtype=torch.float64), "weight": meta(64)},
        [
            "x.dtype is float64, not float32 or bfloat16 or float16: "
            "the engines have no other floating dtype",
            "weight.dtype is bfloat16, x.dtype float64: "
            "the kernel writes its result in the dtype of x",
        ],
    ),
    (
        "layer_norm",
        {"x": meta(2, 5, 64), "weight": meta(5, 64)},
        ["weight.ndim is 2, not 1: one weight row is put on all partitions"],
    ),
    ("softcap_attention", {"q": meta(1, 8, 64, 256), "v": meta(1, 4, 64, 256)}, []),
    (
        "softcap_attention",
        {"v": Facts((1, 4, 64, 576), "bfloat16")},
        ["v.shape[-1] is 576, more than 512: the output of a tile of queries is one bank of PSUM"],
    ),
    ("rope", {"x": meta(2, 8, 64), "cos": meta(2, 64), "style": "interleaved"}, []),
    (
        "rope",
        {"x": meta(2, 8, 64), "cos": meta(2, 64, dtype=torch.float32)},
        ["cos.dtype is float32, x.dtype bfloat16: products and sums are rounded to one dtype"],
    ),
    (
        "rope",
        {"x": meta(2, 8, 64), "cos": meta(2, 64, dtype=torch.float32), "in_fp32": True},
        [],
    ),
]


@pytest.mark.parametrize(("name", "arguments", "sentences"), CALLS)
def test_broken(name: str, arguments: dict[str, Any], sentences: list[str]) -> None:
    assert [str(found) for found in limits.broken(name, arguments)] == sentences


def test_a_limit_is_text_too() -> None:
    texts = {str(limit) for limit in KERNELS["rope"].limits}
    assert {"x.shape[-1] <= 4096", "style in (half, interleaved, deinterleave)"} <= texts
    assert "cos.dtype == x.dtype unless in_fp32" in texts
    even = Limit("x.shape[0]", "two rows go together", multiple_of=2)
    assert str(even) == "x.shape[0] % 2 == 0"
    assert even.broken_by({"x": meta(3, 4)}) == "3, no multiple of 2"
    assert even.broken_by({"x": meta(4)}) == "" == even.broken_by({"x": 7}) == even.broken_by({})


def test_an_ill_formed_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="give one of most"):
        Limit("x.shape[-1]", "why")
    with pytest.raises(ValueError, match="give one of most"):
        Limit("x.shape[-1]", "why", most=3, multiple_of=2)
    with pytest.raises(ValueError, match="no figure"):
        Limit("x.numel()", "why", most=3)
    with pytest.raises(ValueError, match="thing has no parameter y"):

        @NK.nk_function(
            summary="", equation="", phases=(), module="m", limits=(Limit("y.ndim", "", most=2),)
        )
        def thing(x: torch.Tensor) -> torch.Tensor:
            return x

    assert "thing" not in KERNELS


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


Arguments = Callable[[int], tuple[torch.Tensor, ...]]
WIDEST: list[tuple[str, str, Arguments, dict[str, Any]]] = [
    ("rms_norm", "x.shape[-1]", lambda n: (drawn(2, n), drawn(n)), {}),
    ("add_rms_norm", "x.shape[-1]", lambda n: (drawn(2, n), drawn(2, n), drawn(n)), {}),
    ("layer_norm", "x.shape[-1]", lambda n: (drawn(2, n), drawn(n), drawn(n)), {}),
    (
        "rope",
        "x.shape[-1]",
        lambda n: (drawn(1, 2, n), drawn(1, n), drawn(1, n)),
        {"in_fp32": True},
    ),
    (
        "qk_norm_rope",
        "q.shape[-1]",
        lambda n: (*[drawn(1, 2, n)] * 2, drawn(n), drawn(n), *[drawn(1, n)] * 2),
        {"in_fp32": True, "weight_in_fp32": True},
    ),
    (
        "softcap_attention",
        "q.shape[-1]",
        lambda n: (drawn(1, 16, 129, n), drawn(1, 1, 129, n), drawn(1, 1, 129, 512)),
        {},
    ),
    (
        "softcap_attention",
        "v.shape[-1]",
        lambda n: (drawn(1, 1, 2, 8), drawn(1, 1, 2, 8), drawn(1, 1, 2, n)),
        {},
    ),
]


@pytest.mark.parametrize(("name", "figure", "arguments", "options"), WIDEST)
def test_the_widest_fits_and_twice_as_wide_does_not(
    on_device: OnDevice,
    nki_simulator: bool,
    name: str,
    figure: str,
    arguments: Arguments,
    options: dict[str, Any],
) -> None:
    """In float32, which takes the most memory: a limit neither promises too much nor is made up."""
    most = next(limit.most for limit in KERNELS[name].limits if limit.of == figure)
    assert most is not None
    tensors = arguments(most)
    got = on_device(name, *tensors, **options)
    want = getattr(NK, name)(*tensors, **options)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
        assert (a - b).abs().max() <= 100 * bounds.U * b.abs().max()
    if nki_simulator:
        with pytest.raises(SimError) as refused:
            on_device(name, *arguments(2 * most), **options)
        assert refused.value.rule in ("sbuf-budget", "psum-bank", "matmul-tile")
