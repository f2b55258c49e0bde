"""One bad element in full: where, both values, the distance in units in the last place, the reference's error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuron_autoport.accuracy.metrics import ulp_distance
from neuron_autoport.accuracy.three_way import floats


@dataclass(frozen=True)
class BadElement:
    """An element of the output that errs more than the rule allows (or, where none does, most).

    output: which tensor of the output. index: into it. baseline: the truth there. ulps: from expected
    to actual, in their dtype. actual_error, expected_error: absolute, against the baseline.
    over: how many elements err as much.
    """

    output: int
    index: tuple[int, ...]
    baseline: float
    expected: float
    actual: float
    ulps: int
    actual_error: float
    expected_error: float
    over: int
    elements: int

    def text(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]"
        return (
            f"first bad element {place}: {self.actual:.6g} where the reference has "
            f"{self.expected:.6g} (truth {self.baseline:.6g}); {self.ulps} units in the last place; "
            f"error {self.actual_error:.2e}, reference's own {self.expected_error:.2e}; "
            f"{self.over} of {self.elements} elements are as bad"
        )


def first_bad(
    baseline: Any, expected: Any, actual: Any, *, linf_limit: float = 5.0
) -> BadElement | None:
    """The first element, in row-major order, beyond the L-inf limit; else the worst one.

    Args:
        baseline, expected, actual: nested tensors as in `three_way`.

    Returns:
        None if the structures differ or nothing differs at all.
    """
    parts = [floats(v) for v in (baseline, expected, actual)]
    if len({len(p) for p in parts}) != 1:
        return None
    worst: BadElement | None = None
    for number, (base, own, mine) in enumerate(zip(*parts, strict=True)):
        if not base.shape == own.shape == mine.shape or not base.numel():
            continue
        found = _in_tensor(number, base, own, mine, linf_limit)
        if found is not None and (worst is None or found.actual_error > worst.actual_error):
            worst = found
    return worst


def _in_tensor(
    number: int, base: Tensor, own: Tensor, mine: Tensor, linf_limit: float
) -> BadElement | None:
    exact = base.double()
    own_error, error = (
        torch.nan_to_num((v.double() - exact).abs(), nan=torch.inf) for v in (own, mine)
    )
    if not bool((error > 0).any()):
        return None
    usual = own_error[torch.isfinite(own_error)]
    limit = linf_limit * float(usual.max()) if usual.numel() else 0.0
    bad = error > limit
    if not bool(bad.any()):
        bad = error >= error.max()
    place = int(bad.flatten().nonzero()[0, 0])
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), base.shape))
    pair = (own[index], mine[index].to(own.dtype))
    return BadElement(
        number,
        index,
        float(exact[index]),
        float(own[index]),
        float(mine[index]),
        int(ulp_distance(*(p.reshape(1) for p in pair))[0]),
        float(error[index]),
        float(own_error[index]),
        int(bad.sum()),
        base.numel(),
    )
