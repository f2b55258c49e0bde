"""The difference test against tables and formulas that are not its own."""

from __future__ import annotations

import random

import pytest

from neuron_autoport.accuracy.difference import (
    _t_quantile,
    _t_two_sided,
    agresti_min,
    mcnemar,
    paired_difference,
)


@pytest.mark.parametrize(
    ("freedom", "t"),
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (10, 2.228),
        (29, 2.045),
        (120, 1.980),
    ],
)
def test_students_t_against_the_printed_table(freedom: int, t: float) -> None:
    assert _t_two_sided(t, freedom) == pytest.approx(0.05, abs=2e-4)
    assert _t_quantile(freedom) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (0, 1, 1.0), (0, 5, 0.0625), (0, 6, 0.03125), (2, 8, 0.109375), (5, 5, 1.0)]
)  # fmt: skip
def test_mcnemar_by_hand(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p)


def test_interval_of_paired_proportions() -> None:
    """Coverage by simulation: the true difference is inside in about 95 % of samples."""
    chance, inside = random.Random(1), 0
    for _ in range(600):
        draws = [chance.random() for _ in range(112)]
        gained, lost = sum(d < 0.05 for d in draws), sum(0.05 <= d < 0.12 for d in draws)
        low, high = agresti_min(gained, lost, 112)
        inside += low <= -0.02 <= high
    assert 0.92 < inside / 600 < 0.99


def test_verdicts() -> None:
    right = [1.0] * 100 + [0.0] * 12
    assert paired_difference(right, right).verdict(0.05) == ("no worse", True)
    worse = [0.0] * 8 + right[8:]
    found = paired_difference(worse, right)
    assert found.difference == pytest.approx(-8 / 112) and found.p_value < 0.01
    assert found.verdict(0.05) == ("worse", False)
    assert paired_difference(right, worse).verdict(0.05) == ("no worse", True)
    few = [1.0] * 8
    assert paired_difference(few, few).verdict(0.05) == ("too few documents to tell", False)
    assert paired_difference(few, few).verdict(0.25) == ("no worse", True)


def test_scores_that_are_not_right_or_wrong() -> None:
    chance = random.Random(2)
    reference = [-4 + chance.gauss(0, 1) for _ in range(16)]
    near = [r + chance.gauss(0, 0.01) for r in reference]
    far = [r - 0.5 for r in near]
    assert paired_difference(near, reference).verdict(0.05)[1]
    assert paired_difference(far, reference).verdict(0.05) == ("worse", False)
    with pytest.raises(ValueError, match="16 documents against 15"):
        paired_difference(near, reference[1:])
