"""Three-way comparison: is the rewrite as near to the truth as the original is?

Truth is the original in a higher precision, on the same rounded weights and inputs. A rewrite may err as
much as the original does in the same dtype (a different order of summation errs about as much), not
more. This catches what a fixed tolerance lets pass, an epsilon ten times off for instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Errors of two right variants differ by chance and by order of summation.
FP32_RATIO, BF16_RATIO = 3.0, 1.2
# Errors below this many units in the last place, relative to the output's RMS, are rounding. In float32 two
# orders of summing a few rows with outlier channels differ by 8; the least fault, an epsilon of 1e-6 that is
# ten times off at a variance of 1, makes 75.
FP32_FLOOR, BF16_FLOOR = 16 * 2.0**-24, 0.25 * 2.0**-8


@dataclass(frozen=True)
class Comparison:
    """RMS errors against the truth, relative to the truth's RMS; `ratio` is rewritten over original."""

    original: float
    rewritten: float
    finite: bool
    passed: bool

    @property
    def ratio(self) -> float:
        return self.rewritten / self.original if self.original else float(self.rewritten > 0)


def compare(truth: Any, original: Any, rewritten: Any, dtype: torch.dtype) -> Comparison:
    """Compare nested outputs of a module, tensor by tensor; the worst tensor decides.

    Args:
        truth, original, rewritten: outputs of the same structure; truth in a higher precision.
        dtype: of original and rewritten: float32 or bfloat16.
    """
    limit, floor = (BF16_RATIO, BF16_FLOOR) if dtype is torch.bfloat16 else (FP32_RATIO, FP32_FLOOR)
    outputs = [_floats(v) for v in (truth, original, rewritten)]
    if len({len(o) for o in outputs}) != 1:
        return Comparison(0.0, float("inf"), True, False)
    worst: Comparison | None = None
    for t, o, r in zip(*outputs, strict=True):
        if t.shape != r.shape or r.dtype != o.dtype:
            return Comparison(0.0, float("inf"), True, False)
        found = _compare_one(t, o, r, limit, floor)
        if worst is None or (worst.passed, -worst.rewritten) > (found.passed, -found.rewritten):
            worst = found
    return worst or Comparison(0.0, 0.0, True, True)


def _floats(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(value)
    return [t.detach() for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _compare_one(
    truth: torch.Tensor, original: torch.Tensor, rewritten: torch.Tensor, limit: float, floor: float
) -> Comparison:
    if not truth.numel():  # nothing of it to compare
        return Comparison(0.0, 0.0, True, True)
    exact, both = truth.double(), [original.double(), rewritten.double()]
    finite = torch.isfinite(exact)
    theirs, ours = (torch.isfinite(v) for v in both)
    # A choice made of rounded values (the k largest, masked) may fall otherwise than the truth's, but only
    # as it falls in the original.
    if not (torch.equal(ours, finite) or torch.equal(ours, theirs)):
        return Comparison(0.0, float("inf"), False, False)
    if bool(finite.any()) and not bool((finite & theirs & ours).any()):
        return Comparison(0.0, float("inf"), False, False)  # nothing is left to compare
    finite &= theirs & ours
    exact = torch.where(finite, exact, torch.zeros_like(exact))
    scale = exact.square().mean().sqrt().item() or 1.0
    errors = [
        (torch.where(finite, v, exact) - exact).square().mean().sqrt().item() / scale for v in both
    ]
    if truth is original:  # nothing more exact was to be had: both err alike, so allow for two
        floor = 8 * floor
    passed = errors[1] <= max(limit * errors[0], floor)
    return Comparison(errors[0], errors[1], True, passed)
