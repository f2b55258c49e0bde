"""Are two systems as good on the same documents? Paired tests, not two bare averages.

Right or wrong per document: McNemar's exact test, and the interval of Agresti and Min (2005) for a difference of
paired proportions. Other scores: Student's t on the differences. A system passes if it is shown not to be
worse by more than a margin; too few documents to show that is no pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959963984540054  # 97.5 % of the normal distribution


@dataclass(frozen=True)
class Difference:
    """Mean of ported minus reference over paired documents, its 95 % interval, and the p-value of no difference."""

    ported: float
    reference: float
    interval: tuple[float, float]
    p_value: float
    documents: int
    binary: bool

    @property
    def difference(self) -> float:
        return self.ported - self.reference

    def verdict(self, margin: float) -> tuple[str, bool]:
        """In words, and whether it passes.

        Args:
            margin: largest accepted loss; of scores that are not right or wrong, relative to the reference.
        """
        allowed = margin if self.binary else margin * abs(self.reference)
        if self.binary and self.p_value < 0.05 and self.difference < 0:
            return "worse", False
        if self.interval[0] < -allowed:
            return ("worse" if self.interval[1] < 0 else "too few documents to tell"), False
        return "no worse", True


def paired_difference(ported: Sequence[float], reference: Sequence[float]) -> Difference:
    """Compare scores of the same documents in the same order; higher is better.

    Raises:
        ValueError: not the same number of documents, or none.
    """
    count = len(ported)
    if count != len(reference) or not count:
        raise ValueError(f"{count} documents against {len(reference)}")
    means = sum(ported) / count, sum(reference) / count
    if set(ported) | set(reference) <= {0.0, 1.0}:
        lost = sum(p < r for p, r in zip(ported, reference, strict=True))
        gained = sum(p > r for p, r in zip(ported, reference, strict=True))
        interval = agresti_min(gained, lost, count)
        return Difference(*means, interval, mcnemar(gained, lost), count, True)
    differences = [p - r for p, r in zip(ported, reference, strict=True)]
    interval, p_value = _t_test(differences)
    return Difference(*means, interval, p_value, count, False)


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p-value that a change is as likely to gain as to lose (McNemar, 1947)."""
    total = gained + lost
    tail = sum(math.comb(total, i) for i in range(min(gained, lost) + 1)) / 2**total
    return min(1.0, 2 * tail)


def agresti_min(gained: int, lost: int, count: int) -> tuple[float, float]:
    """95 % interval of a difference of paired proportions: half an observation added to each cell."""
    more, fewer, total = gained + 0.5, lost + 0.5, count + 2
    middle = (more - fewer) / total
    half = _Z * math.sqrt((more + fewer) - (more - fewer) ** 2 / total) / total
    return middle - half, middle + half


def _t_test(differences: list[float]) -> tuple[tuple[float, float], float]:
    count = len(differences)
    mean = sum(differences) / count
    if count < 2:
        return (-math.inf, math.inf), 1.0
    error = math.sqrt(sum((d - mean) ** 2 for d in differences) / (count - 1) / count)
    if error == 0.0:
        return (mean, mean), 1.0 if mean == 0.0 else 0.0
    edge = _t_quantile(count - 1)
    p_value = _t_two_sided(abs(mean) / error, count - 1)
    return (mean - edge * error, mean + edge * error), p_value


def _t_two_sided(t: float, freedom: int) -> float:
    """P(|T| > t) of Student's distribution, by the finite sums for whole degrees of freedom.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    if freedom % 2:
        term, total = cos, cos if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = 2 / math.pi * (angle + sin * total)
    else:
        term = total = 1.0
        for k in range(2, freedom - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        inside = sin * total
    return max(0.0, 1.0 - inside)


def _t_quantile(freedom: int) -> float:
    """The t beyond which lie 2.5 % on each side, by bisection."""
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_two_sided(middle, freedom) > 0.05 else (low, middle)
    return high
