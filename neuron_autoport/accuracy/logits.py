"""Judge logits of whole prompts against the reference's: the measures of level 2, whatever the host.

A mode passes, as in the plugin's validation of several prompts, if the errors of all prompts stay within the
top-k tolerances, or are distributed as the reference's own (coefficient >= 0.99), or are no larger
(sigma ratio <= 1). No single prompt may err five times as much (L-inf) or three times (L2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuron_autoport.accuracy.metrics import (
    TOP_K_TOLERANCES,
    agreement,
    bhattacharyya,
    kl_divergence,
    ratio,
    rms,
    top_k_errors,
)
from neuron_autoport.accuracy.schema import ModeResult, PromptResult, finite

# Of a large vocabulary, errors are compared in distribution at every n-th token, so many in all.
_COLUMNS = 4096
_HIGHEST = 50
# Rounding of float32 logits, relative to the largest: below it the reference is as good as exact.
_FLOOR = 1e-6


@dataclass(eq=False)
class Truth:
    """The exact logits of one prompt [positions, vocabulary], and what is read from them often."""

    name: str
    logits: Tensor

    @cached_property
    def order(self) -> Tensor:
        most = max(k for k in TOP_K_TOLERANCES if k is not None)
        return self.logits.topk(min(most, self.logits.shape[-1]), dim=-1).indices

    @cached_property
    def scale(self) -> float:
        return float(self.logits.abs().max()) or 1.0

    @cached_property
    def columns(self) -> Tensor:
        """Tokens whose errors are sampled: the highest, and every n-th of all; [positions, n]."""
        vocabulary = self.logits.shape[-1]
        step = max(1, vocabulary // _COLUMNS)
        spread = torch.arange(0, vocabulary, step).expand(self.logits.shape[0], -1)
        return spread if step == 1 else torch.cat([self.order[:, :_HIGHEST], spread], dim=1)


@dataclass(eq=False)
class Measured:
    """What one run gave for one prompt, against the truth.

    sample: errors at the truth's sampled columns, less their mean at each position; NaN where not
    reported. A constant added to all logits of a position changes nothing that a softmax makes of them, but would
    make all errors of the position one and the same.
    """

    errors: dict[int | None, float]
    sample: Tensor
    kl: Tensor | None
    agreement: float
    first: int | None
    finite: bool


def measure(truth: Truth, logits: Tensor) -> Measured:
    """Measure logits [positions, vocabulary]; NaN is a logit that was not reported."""
    logits = logits.float()
    sample = (logits.gather(-1, truth.columns) - truth.logits.gather(-1, truth.columns)).float()
    sample = sample - sample.nanmean(dim=-1, keepdim=True)
    missing = bool(torch.isnan(sample).any())
    kl = None if missing else kl_divergence(truth.logits, logits)
    share, first = agreement(truth.logits, logits)
    errors = top_k_errors(truth.logits, logits, order=truth.order)
    known = sample[~torch.isnan(sample)]
    usable = bool(torch.isfinite(known).all()) and 5 in errors
    return Measured(errors, sample, kl, share, first, usable)


def judge_mode(
    mode: str, truths: list[Truth], expected: list[Measured], actual: list[Measured]
) -> ModeResult:
    """Judge one mode: every prompt, and all together."""
    prompts = [_prompt(t, e, a) for t, e, a in zip(truths, expected, actual, strict=True)]
    scale = max(t.scale for t in truths)
    own, mine = [], []
    for e, a in zip(expected, actual, strict=True):
        known = torch.isfinite(a.sample) & torch.isfinite(e.sample)
        own.append(e.sample[known])
        mine.append(a.sample[known])
    errors = [torch.cat(v) for v in (own, mine)]
    coefficient = bhattacharyya(*errors)
    r = ratio(rms(errors[1]), rms(errors[0]))
    over = _over(actual)
    within = not over and all(a.finite for a in actual)
    close = coefficient >= 0.99 or r <= 1.0 or rms(errors[1]) <= _FLOOR * scale
    passed = all(p.passed for p in prompts) and (within or close)
    positions = [p.positions for p in prompts]
    return ModeResult(
        mode=mode,
        within=within,
        coefficient=coefficient,
        r=finite(r),
        agreement=_mean([a.agreement for a in actual], positions),
        reference_agreement=_mean([e.agreement for e in expected], positions),
        passed=passed,
        why=_why(over, coefficient, r, [p.prompt for p in prompts if not p.passed]),
        prompts=prompts,
    )


def broken_mode(mode: str, truths: list[Truth], problem: str) -> ModeResult:
    """A mode in which the port does not run."""
    return ModeResult(
        mode=mode, within=False, coefficient=0.0, r=None, agreement=0.0, reference_agreement=1.0,
        passed=False, why=problem, prompts=[],
    )  # fmt: skip


def _prompt(truth: Truth, expected: Measured, actual: Measured) -> PromptResult:
    known = torch.isfinite(actual.sample) & torch.isfinite(expected.sample)
    own, mine = expected.sample[known], actual.sample[known]
    linf = ratio(float(mine.abs().max()), float(own.abs().max())) if mine.numel() else math.inf
    l2 = ratio(rms(mine), rms(own)) if mine.numel() else math.inf
    small = bool(mine.numel()) and float(mine.abs().max()) <= 5 * _FLOOR * truth.scale
    gap = None
    if actual.first is not None:
        top = truth.logits[actual.first].topk(2).values
        gap = float(top[0] - top[1]) / truth.scale
    within = not _over([actual])
    return PromptResult(
        prompt=truth.name,
        positions=truth.logits.shape[0],
        errors={label(k): v for k, v in actual.errors.items()},
        reference_errors={label(k): v for k, v in expected.errors.items()},
        linf_ratio=finite(linf),
        l2_ratio=finite(l2),
        kl_mean=float(actual.kl.mean()) if actual.kl is not None else None,
        kl_max=float(actual.kl.max()) if actual.kl is not None else None,
        reference_kl_mean=float(expected.kl.mean()) if expected.kl is not None else None,
        agreement=actual.agreement,
        reference_agreement=expected.agreement,
        first_divergence=actual.first,
        divergence_gap=gap,
        passed=actual.finite and (within or small or (linf < 5 and l2 < 3)),
    )


def _over(measured: list[Measured]) -> list[str]:
    """Tolerances that any of the prompts breaks."""
    found = []
    for k, tolerance in TOP_K_TOLERANCES.items():
        worst = max((m.errors[k] for m in measured if k in m.errors), default=0.0)
        if worst > tolerance:
            found.append(f"top-{label(k)} error {worst:.3g} > {tolerance:g}")
    return found


def _why(over: list[str], coefficient: float, r: float, bad: list[str]) -> str:
    figures = f"coefficient {coefficient:.4f}, R {r:.3g}"
    parts = [*over, figures] if over else [f"within the top-k tolerances, {figures}"]
    if bad:
        parts.append(f"beyond its reference's errors or not finite: prompt {', '.join(bad)}")
    return "; ".join(parts)


def _mean(values: list[float], weights: list[int]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / (sum(weights) or 1)


def label(k: int | None) -> str:
    return "all" if k is None else str(k)
