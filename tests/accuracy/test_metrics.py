"""The metrics against independent computations and hand-made distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from neuron_autoport.accuracy import (
    agreement,
    bhattacharyya,
    kl_divergence,
    top_k_errors,
    ulp_distance,
)
from neuron_autoport.accuracy.metrics import ratio, rms


def normal(count: int, sigma: float = 1.0, seed: int = 0, shift: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator, dtype=torch.float64) * sigma + shift


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.22, 1.5, 2.0, 5.0])
def test_coefficient_of_two_widths(factor: float) -> None:
    """Of N(0, 1) and N(0, s): sqrt(2 s / (1 + s^2)), the closed form."""
    found = bhattacharyya(normal(400_000), normal(400_000, factor, seed=1))
    # Bins are half the wider RMS: a much narrower distribution is seen coarsely, and overlaps a little more.
    exact = math.sqrt(2 * factor / (1 + factor**2))
    assert exact - 0.004 < found < exact + (0.004 if factor < 1.6 else 0.06)
    assert (found >= 0.99) == (factor <= 1.22)


@pytest.mark.parametrize("shift", [0.0, 0.2, 0.5, 1.0, 2.0])
def test_coefficient_of_a_shift(shift: float) -> None:
    """Of N(0, 1) and N(d, 1): exp(-d^2 / 8)."""
    found = bhattacharyya(normal(400_000), normal(400_000, seed=1, shift=shift))
    assert found == pytest.approx(math.exp(-(shift**2) / 8), abs=0.01)


def test_coefficient_of_shapes_by_hand() -> None:
    flat = torch.linspace(-1, 1, 80_001, dtype=torch.float64)
    assert bhattacharyya(flat, flat) == 1.0
    # Two uniform densities, one on half the range of the other: the integral of sqrt(1/2 * 1) over 1.
    assert bhattacharyya(flat, flat / 2) == pytest.approx(math.sqrt(0.5), abs=0.02)
    assert bhattacharyya(flat - 10, flat + 10) == pytest.approx(0.0, abs=1e-3)
    # Two values with 1/4 and 3/4 against 1/2 and 1/2: sqrt(1/8) + sqrt(3/8).
    quarter = torch.tensor([-1.0] * 1000 + [1.0] * 3000)
    half = torch.tensor([-1.0] * 2000 + [1.0] * 2000)
    expected = math.sqrt(1 / 8) + math.sqrt(3 / 8)
    assert bhattacharyya(quarter, half) == pytest.approx(expected, abs=1e-3)


def test_coefficient_of_nothing_and_of_zeros() -> None:
    zeros, some = torch.zeros(100), normal(100)
    assert bhattacharyya(zeros, zeros) == 1.0
    assert bhattacharyya(zeros, some) == 0.0 == bhattacharyya(some, zeros)
    assert bhattacharyya(torch.zeros(0), torch.zeros(0)) == 1.0


@pytest.mark.parametrize("count", [64, 256, 1024, 4096])
def test_small_samples_of_one_distribution_are_not_held_to_be_different(count: int) -> None:
    found = [
        bhattacharyya(normal(count, seed=2 * i), normal(count, seed=2 * i + 1)) for i in range(40)
    ]
    assert 0.985 < sum(found) / 40 <= 1.0


def test_ratio_and_rms() -> None:
    assert rms(torch.tensor([3.0, 4.0])) == pytest.approx(math.sqrt(12.5))
    assert rms(torch.zeros(0)) == 0.0
    assert (ratio(2.0, 4.0), ratio(0.0, 0.0), ratio(1.0, 0.0)) == (0.5, 1.0, math.inf)


def test_units_in_the_last_place_against_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2000, generator=generator)
    steps = torch.randint(-4, 5, (2000,), generator=generator)
    b = a.numpy().copy()
    for _ in range(4):
        moving = np.abs(steps.numpy()) > 0
        b = np.where(
            moving,
            np.nextafter(b, np.where(steps.numpy() > 0, np.inf, -np.inf), dtype=np.float32),
            b,
        )
        steps = steps - steps.sign()
    generator = torch.Generator().manual_seed(0)
    torch.randn(2000, generator=generator)
    wanted = torch.randint(-4, 5, (2000,), generator=generator).abs()
    assert torch.equal(ulp_distance(a, torch.from_numpy(b)), wanted)


def test_units_in_the_last_place_by_hand() -> None:
    one = torch.tensor([1.0, 1.0, 0.0, -1.0], dtype=torch.bfloat16)
    other = torch.tensor([1.0 + 2**-7, 1.0 - 2**-8, -0.0, -1.0 - 2**-6], dtype=torch.bfloat16)
    assert ulp_distance(one, other).tolist() == [1, 1, 0, 2]
    tiny = torch.tensor([2.0**-149]), torch.tensor([-(2.0**-149)])
    assert ulp_distance(*tiny).tolist() == [2]
    with pytest.raises(TypeError, match="one dtype"):
        ulp_distance(one, other.float())


def test_top_k_errors_by_hand() -> None:
    reference = torch.tensor([[10.0, 8.0, 6.0, 4.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    actual = reference.clone()
    actual[0, 5] = 1.0  # the lowest of six
    actual[1, 4] = 4.2
    found = top_k_errors(reference, actual, (1, 5, None))
    assert found[1] == 0.0
    assert found[5] == pytest.approx(0.02, rel=1e-4)
    assert found[None] == pytest.approx(0.1, rel=1e-4)
    actual[1, 0] = float("nan")  # not reported, the lowest there
    assert set(top_k_errors(reference, actual, (1, 5, None))) == {1, 5}


def test_kl_and_agreement_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], dtype=torch.float64)
    found = kl_divergence(p.log() + 3, q.log() - 1)  # a constant does not count
    assert found.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-12)
    assert agreement(p, q) == (0.5, 0)
    assert agreement(p, p) == (1.0, None)
