"""Shared by the NF tests: adversarial data, float64 comparison, a backend decided afresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from neuron_autoport.nf import dispatch

Draw = Callable[..., Tensor]
Close = Callable[..., None]


@pytest.fixture(autouse=True)
def fresh_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test decides the backend anew, and none sees this machine's own setting."""
    monkeypatch.delenv("VLLM_NEURON_CPU_MODE", raising=False)
    dispatch.decide.cache_clear()
    torch._dynamo.reset()
    yield
    dispatch.decide.cache_clear()
    torch._dynamo.reset()


@pytest.fixture
def draw() -> Draw:
    """draw(*shape, scale=1, outliers=False): seeded normal data; outliers: 1 channel in 8 x40."""
    generator = torch.Generator().manual_seed(7)

    def make(*shape: int, scale: float = 1.0, outliers: bool = False) -> Tensor:
        data = torch.randn(*shape, generator=generator) * scale
        if outliers:
            data[..., ::8] *= 40.0
        return data

    return make


@pytest.fixture
def close() -> Close:
    """close(got, want, rel): same shape, largest error within rel of the largest value."""

    def check(got: Tensor, want: ArrayLike, rel: float = 4e-6) -> None:
        reference = np.asarray(want)
        assert reference.dtype == np.float64
        assert tuple(got.shape) == reference.shape
        error = np.abs(got.detach().double().numpy() - reference).max()
        assert error <= rel * np.abs(reference).max(), f"error {error}"

    return check
