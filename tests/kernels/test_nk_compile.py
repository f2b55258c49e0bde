"""Every NK function in one graph, on meta tensors, and with a length that only the run knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from neuron_autoport import kernels as NK

T = 5


def shapes(t: int) -> dict[str, list[tuple[int, ...]]]:
    q, k, table = (2, 4, t, 16), (2, 2, t, 16), (2, t, 16)
    return {
        "rms_norm": [(t, 16), (16,)],
        "add_rms_norm": [(t, 16), (t, 16), (16,)],
        "layer_norm": [(t, 16), (16,), (16,)],
        "act_and_mul": [(t, 16), (t, 16)],
        "rope": [q, table, table],
        "qk_norm_rope": [q, k, (16,), (16,), table, table],
        "softcap_attention": [q, k, k],
    }


OPTIONS: dict[str, dict[str, Any]] = {
    "rms_norm": {"offset": 1.0, "weight_in_fp32": True},
    "layer_norm": {"weight_in_fp32": True},
    "act_and_mul": {"kind": "clamped_swiglu", "limit": 7.0},
    "rope": {"style": "interleaved", "in_fp32": True},
    "softcap_attention": {"softcap": 30.0, "window": 3},
}


def drawn(name: str, t: int, dtype: torch.dtype) -> list[Tensor]:
    source = torch.Generator().manual_seed(t)
    return [torch.randn(*shape, generator=source).to(dtype) for shape in shapes(t)[name]]


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def call(name: str) -> Callable[..., tuple[Tensor, ...]]:
    function, options = getattr(NK, name), OPTIONS.get(name, {})
    return lambda *tensors: as_tuple(function(*tensors, **options))


def test_the_list_is_complete() -> None:
    assert set(shapes(T)) == set(NK.__all__)


@pytest.mark.parametrize("name", NK.__all__)
def test_one_graph_for_every_length(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(call(name), fullgraph=True, dynamic=True, backend="eager")
    for t in (T, 9):
        tensors = drawn(name, t, torch.bfloat16)
        got, want = compiled(*tensors), call(name)(*tensors)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NK.__all__)
def test_meta_tensors(name: str, dtype: torch.dtype) -> None:
    real = call(name)(*drawn(name, T, dtype))
    meta = call(name)(*(x.to("meta") for x in drawn(name, T, dtype)))
    for a, b in zip(real, meta, strict=True):
        assert b.is_meta and (a.shape, a.dtype) == (b.shape, b.dtype)
