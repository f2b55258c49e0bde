"""The attention kernel in simulation, against float64 softmax computed one query at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels import bounds
from tests.kernels.conftest import OnDevice
from tests.kernels.data import DTYPES, generator

Shape = tuple[int, int, int, int, int, int, int]
# B, N, Nkv, T, S, D, Dv
SHAPES: dict[str, Shape] = {
    "one query": (1, 2, 1, 1, 1, 16, 16),
    "one query, a past": (1, 2, 2, 1, 140, 16, 16),
    "head_dim 256": (1, 1, 1, 130, 130, 256, 256),
    "head_dim 80 and 96": (2, 2, 1, 37, 37, 80, 96),
    "head_dim 192, two tiles of unequal size": (1, 2, 2, 20, 20, 192, 128),
    "several blocks of keys": (1, 2, 1, 20, 1100, 24, 24),
    "two tiles of queries over two blocks": (1, 1, 1, 200, 530, 16, 16),
    "more tiles than go together": (1, 17, 1, 2, 2, 8, 8),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"softcap": 5.0},
    {"window": 7, "sink": True},
    {"softcap": 50.0, "window": 129, "sink": True, "scale": 0.3},
]


def inputs(shape: Shape, dtype: torch.dtype, size: float = 1.0) -> list[Tensor]:
    batch, heads, groups, tokens, keys, width, values = shape
    source = generator("attention", shape, size)
    q = torch.randn(batch, heads, tokens, width, generator=source) * size
    k = torch.randn(batch, groups, keys, width, generator=source)
    v = torch.randn(batch, groups, keys, values, generator=source) + 0.5
    v[..., ::8] *= 40.0
    return [t.to(dtype) for t in (q, k, v)]


def sink_of(heads: int, dtype: torch.dtype) -> Tensor:
    """Far above and far below the scores, and among them."""
    return torch.tensor([30.0, -40.0, 0.5, 2.0]).repeat(heads)[:heads].to(dtype)


def run_and_check(
    on_device: OnDevice, shape: Shape, data: list[Tensor], options: dict[str, Any], lnc: int
) -> None:
    q, k, v = data
    given = dict(options)
    if given.get("sink"):
        given["sink"] = sink_of(shape[1], q.dtype)
    got = on_device("softcap_attention", q, k, v, lnc=lnc, **given)
    assert got.dtype == q.dtype
    scale = given.pop("scale", q.shape[-1] ** -0.5)
    bounds.check(got, bounds.attention(q, k, v, scale, **given), f"{options}")


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_attention(on_device: OnDevice, name: str, dtype: torch.dtype, lnc: int) -> None:
    shape = SHAPES[name]
    data = inputs(shape, dtype)
    for options in OPTIONS if lnc == 1 else OPTIONS[3:]:
        run_and_check(on_device, shape, data, options, lnc)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0.0, 60.0])
def test_flat_and_one_hot_softmax(on_device: OnDevice, dtype: torch.dtype, size: float) -> None:
    """Scores of zero: a plain mean. Scores of some hundreds: one key takes all; exp must not overflow."""
    shape = (1, 2, 1, 20, 530, 64, 16)
    for options in ({}, {"sink": True}, {"softcap": 30.0}):
        run_and_check(on_device, shape, inputs(shape, dtype, size), options, 1)


def test_every_window_width(on_device: OnDevice) -> None:
    """Around the edges of tiles and blocks; a window of one is the query's own value."""
    shape = (1, 1, 1, 3, 1030, 8, 8)
    q, k, v = inputs(shape, torch.float32)
    for window in (1, 2, 3, 127, 128, 129, 511, 512, 513, 1027, 1028, 1029, 1030, 5000):
        run_and_check(on_device, shape, [q, k, v], {"window": window}, 1)
    own = on_device("softcap_attention", q, k, v, window=1)
    assert torch.allclose(own[0, 0], v[0, 0, -3:], rtol=1e-6)


def test_a_hidden_key_has_no_influence(on_device: OnDevice) -> None:
    """Keys behind the query, or before its window, may hold anything but NaN."""
    q, k, v = inputs((1, 1, 1, 4, 140, 16, 16), torch.float32)
    plain = on_device("softcap_attention", q, k, v, window=20)
    k[:, :, :110] = 1e3
    v[:, :, :110] = -1e6
    assert torch.equal(plain, on_device("softcap_attention", q, k, v, window=20))
