"""Three-way comparison by the plugin's rule: baseline in fp32, expected in the target's dtype, actual.

A right port errs about as much against the baseline as the reference does in the same dtype; how much that
is differs from module to module, so no fixed tolerance is right for all. Passes if
(Bhattacharyya coefficient >= 0.99 or sigma ratio <= 1.0) and L-inf ratio < 5 and L2 ratio < 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from neuron_autoport.accuracy.metrics import bhattacharyya, ratio, rms

WARN_RATIO = 1.2
# Errors of both below this many units in the last place of the output's RMS say nothing about each other.
# Two orders of summation of a dot product differ by about that in float32; bfloat16 results that
# differ at all differ by half a unit at least, so there the floor only covers tensors that are nearly exact.
_FLOOR_ULPS = {torch.float32: 8.0, torch.bfloat16: 0.05, torch.float16: 0.05}
_EPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


class Verdict(StrEnum):
    """What a comparison says."""

    same = "bitwise equal"
    rounding = "rounding order"
    warn = "above R 1.2"
    failed = "failed"


@dataclass(frozen=True)
class Limits:
    """The rule's thresholds; the defaults are the plugin's."""

    coefficient: float = 0.99
    sigma: float = 1.0
    linf: float = 5.0
    l2: float = 3.0


@dataclass(frozen=True)
class ThreeWay:
    """Figures of one comparison, aggregated over its tensors (L-inf and L2: the worst tensor).

    coefficient: overlap of the two error distributions. sigma_ratio: RMS error of actual over that of
    expected; `r` is the same figure by its usual name. linf_ratio, l2_ratio: as named.
    actual_error, expected_error: RMS error relative to the baseline's RMS. finite: actual has NaN or
    infinity only where the baseline has. floor: both errors are within rounding, nothing else counts.
    """

    name: str
    coefficient: float
    sigma_ratio: float
    linf_ratio: float
    l2_ratio: float
    actual_error: float
    expected_error: float
    equal: bool
    finite: bool
    floor: bool
    elements: int
    limits: Limits = Limits()
    problem: str | None = None

    @property
    def r(self) -> float:
        """Error against the baseline over the reference's own error there."""
        return self.sigma_ratio

    @property
    def passed(self) -> bool:
        if self.problem is not None or not self.finite:
            return False
        if self.equal or self.floor:
            return True
        close = self.coefficient >= self.limits.coefficient or self.sigma_ratio <= self.limits.sigma
        return close and self.linf_ratio < self.limits.linf and self.l2_ratio < self.limits.l2

    @property
    def bounded(self) -> bool:
        """The part of the rule about the size of errors: L-inf and L2, not their distribution."""
        if self.problem is not None or not self.finite:
            return False
        small = self.linf_ratio < self.limits.linf and self.l2_ratio < self.limits.l2
        return self.equal or self.floor or small

    @property
    def verdict(self) -> Verdict:
        """Bitwise equal, different by rounding order only, passed with R above 1.2, or failed."""
        if not self.passed:
            return Verdict.failed
        if self.equal:
            return Verdict.same
        return Verdict.warn if self.r > WARN_RATIO and not self.floor else Verdict.rounding

    def why(self) -> str:
        """One line: the figures, and for a failure which of them break the rule."""
        if self.problem is not None:
            return self.problem
        if not self.finite:
            return "NaN or infinity where the baseline is finite, or the other way round"
        figures = (
            f"coefficient {self.coefficient:.4f}, R {self.r:.3g}, L∞ ratio {self.linf_ratio:.3g}, "
            f"L2 ratio {self.l2_ratio:.3g} (error {self.actual_error:.2e}, "
            f"reference's own {self.expected_error:.2e})"
        )
        return figures if self.passed else f"{figures}: {', '.join(self.broken())}"

    def broken(self) -> list[str]:
        """The parts of the rule that do not hold."""
        limits, found = self.limits, []
        if self.coefficient < limits.coefficient and self.sigma_ratio > limits.sigma:
            found.append(f"coefficient < {limits.coefficient:g} and sigma ratio > {limits.sigma:g}")
        if self.linf_ratio >= limits.linf:
            found.append(f"L∞ ratio ≥ {limits.linf:g}")
        if self.l2_ratio >= limits.l2:
            found.append(f"L2 ratio ≥ {limits.l2:g}")
        return found


def three_way(
    baseline: Any, expected: Any, actual: Any, *, name: str = "tensor", limits: Limits | None = None
) -> ThreeWay:
    """Compare nested tensors three ways; see `ThreeWay`.

    Args:
        baseline: the truth, in a higher precision than the others. expected: the reference in the
            target's dtype. actual: what is judged. Tensors, or the same nesting of them; only
            floating-point tensors count.
        name: stands in the result and its messages.
    """
    limits = limits or Limits()
    parts = [floats(v) for v in (baseline, expected, actual)]
    problem = _mismatch(parts)
    if problem is not None:
        nothing = math.inf
        return ThreeWay(name, 0.0, nothing, nothing, nothing, nothing, 0.0, False, True, False, 0,
                        limits, problem)  # fmt: skip
    return _figures(name, list(zip(*parts, strict=True)), limits)


def assert_close_three_way(
    baseline: Any,
    expected: Any,
    actual: Any,
    *,
    name: str = "tensor",
    bc_threshold: float = 0.99,
    max_linf_ratio: float = 5.0,
    max_l2_ratio: float = 3.0,
) -> ThreeWay:
    """Assert that `actual` errs against `baseline` as `expected` does; for tests of your own.

    Args:
        baseline: float32 (or float64) truth. expected: the reference in the dtype of `actual`.
        actual: what is tested. bc_threshold, max_linf_ratio, max_l2_ratio: the rule's limits.

    Returns:
        The figures, when they pass.

    Raises:
        AssertionError: they do not; the message has the figures and the first bad element.
    """
    from neuron_autoport.accuracy.view import first_bad

    limits = Limits(bc_threshold, 1.0, max_linf_ratio, max_l2_ratio)
    found = three_way(baseline, expected, actual, name=name, limits=limits)
    if not found.passed:
        bad = first_bad(baseline, expected, actual)
        raise AssertionError(f"{name}: {found.why()}" + (f"\n  {bad.text()}" if bad else ""))
    return found


def floats(value: Any) -> list[Tensor]:
    """The floating-point tensors of a nested value, in order."""
    leaves = pytree.tree_leaves(value)
    return [t.detach() for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


def _mismatch(parts: Sequence[list[Tensor]]) -> str | None:
    counts = [len(p) for p in parts]
    if len(set(counts)) != 1:
        return f"{counts[2]} tensors where the reference gives {counts[1]}"
    for base, expected, actual in zip(*parts, strict=True):
        if not base.shape == expected.shape == actual.shape:
            return f"shape {tuple(actual.shape)} where the reference has {tuple(expected.shape)}"
        if expected.dtype is not actual.dtype:
            return f"dtype {actual.dtype} where the reference has {expected.dtype}"
    return None


def _figures(
    name: str, triples: Sequence[tuple[Tensor, Tensor, Tensor]], limits: Limits
) -> ThreeWay:
    equal = all(torch.equal(e.nan_to_num(), a.nan_to_num()) for _, e, a in triples)
    errors: list[tuple[Tensor, Tensor]] = []
    linf = l2 = 0.0
    finite, squares, elements = True, 0.0, 0
    eps = 0.0
    for base, expected, actual in triples:
        usable, alike = _usable(base, expected, actual)
        finite &= alike
        exact = _picked(base, usable)
        own = _picked(expected, usable) - exact
        mine = own if equal else _picked(actual, usable) - exact
        errors.append((own, mine))
        squares += exact.numel() * rms(exact) ** 2
        elements += exact.numel()
        if exact.numel():
            worst = [float(e.abs().max()) for e in (own, mine)]
            linf = max(linf, ratio(worst[1], worst[0]))
            l2 = max(l2, ratio(rms(mine), rms(own)))
        eps = max(eps, _FLOOR_ULPS.get(actual.dtype, 0.0) * _EPS.get(actual.dtype, 0.0))
    owns, mines = (torch.cat([e[i] for e in errors]) if errors else torch.zeros(0) for i in (0, 1))
    scale = math.sqrt(squares / elements) if elements and squares else 1.0
    own_rms, my_rms = rms(owns), rms(mines)
    return ThreeWay(
        name, 1.0 if equal else bhattacharyya(owns, mines), ratio(my_rms, own_rms), linf, l2,
        my_rms / scale, own_rms / scale, equal, finite,
        my_rms <= eps * scale, elements, limits,
    )  # fmt: skip


def _usable(base: Tensor, expected: Tensor, actual: Tensor) -> tuple[Tensor | None, bool]:
    """Where all three are finite (None: everywhere), and whether actual is where base is."""
    here, there = torch.isfinite(base), torch.isfinite(actual)
    alike = bool(torch.equal(here, there))
    usable = here & there & torch.isfinite(expected)
    return (None if bool(usable.all()) else usable), alike


def _picked(values: Tensor, usable: Tensor | None) -> Tensor:
    """The usable values, flat, in float64."""
    return (values.flatten() if usable is None else values[usable]).double()
