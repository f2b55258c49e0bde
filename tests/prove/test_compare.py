"""The three-way comparison: what passes and what does not."""

from __future__ import annotations

import math

import pytest
import torch

from neuron_autoport.prove.compare import compare


def noisy(truth: torch.Tensor, error: float) -> torch.Tensor:
    """`truth` with an RMS error of exactly `error` times its RMS."""
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(3), dtype=truth.dtype)
    noise *= error * truth.square().mean().sqrt() / noise.square().mean().sqrt()
    return truth + noise


@pytest.fixture
def truth() -> torch.Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("dtype", "original", "rewritten", "passes"),
    [
        (torch.float32, 1e-6, 1e-6, True),
        (torch.float32, 1e-6, 2.9e-6, True),
        (torch.float32, 1e-6, 3.2e-6, False),
        (torch.float32, 1e-9, 9e-7, True),  # both within rounding
        (torch.float32, 1e-9, 1.1e-6, False),
        (torch.bfloat16, 3e-3, 3.5e-3, True),
        (torch.bfloat16, 3e-3, 3.7e-3, False),
        (torch.bfloat16, 0.0, 0.9e-3, True),
        (torch.bfloat16, 0.0, 1.1e-3, False),
    ],
)
def test_limits(
    truth: torch.Tensor, dtype: torch.dtype, original: float, rewritten: float, passes: bool
) -> None:
    found = compare(truth, noisy(truth, original), noisy(truth, rewritten), dtype)
    assert found.passed is passes
    assert math.isclose(found.rewritten, rewritten, rel_tol=1e-6)
    assert math.isclose(found.original, original, rel_tol=1e-6, abs_tol=1e-12)


def test_the_worst_tensor_decides(truth: torch.Tensor) -> None:
    good, bad = noisy(truth, 1e-7), noisy(truth, 1e-2)
    for pair in ((good, bad), (bad, good), {"a": good, "b": [bad]}):
        originals = torch.utils._pytree.tree_map(lambda _: good, pair)
        truths = torch.utils._pytree.tree_map(lambda _: truth, pair)
        found = compare(truths, originals, pair, torch.float32)
        assert not found.passed and math.isclose(found.rewritten, 1e-2, rel_tol=1e-6)


def test_shapes_dtypes_and_counts_must_agree(truth: torch.Tensor) -> None:
    for other in (truth[None], truth.float(), (truth, truth), None, truth[:1]):
        assert not compare(truth, truth, other, torch.float32).passed


def test_what_is_not_finite_must_be_so_in_both(truth: torch.Tensor) -> None:
    hole = truth.clone()
    hole[0, 0] = float("nan")
    assert compare(hole, hole, hole, torch.float32).passed
    found = compare(truth, truth, hole, torch.float32)
    assert not found.passed and not found.finite
    found = compare(hole, hole, truth, torch.float32)
    assert not found.passed and not found.finite


def test_a_choice_may_fall_as_in_the_original_only(truth: torch.Tensor) -> None:
    """Which of two near values is masked may differ from the truth, not from the original."""
    chosen, other = truth.clone(), truth.clone()
    chosen[0, 0], other[0, 1] = float("-inf"), float("-inf")
    assert compare(chosen, other, other, torch.float32).passed
    assert compare(chosen, other, chosen, torch.float32).passed
    third = truth.clone()
    third[0, 2] = float("-inf")
    assert not compare(chosen, other, third, torch.float32).passed
    off = other.clone()
    off[1] += 1
    assert not compare(chosen, other, off, torch.float32).passed
    nothing = torch.full_like(truth, float("nan"))
    assert not compare(truth, nothing, nothing, torch.float32).passed


def test_a_tensor_without_elements(truth: torch.Tensor) -> None:
    empty = truth[:0]
    assert compare(empty, empty, empty, torch.float32).passed
    assert not compare(empty, empty, truth, torch.float32).passed
    assert not compare((empty, truth), (empty, truth), (empty, truth + 1), torch.float32).passed
