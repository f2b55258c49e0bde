"""Does a kernel fit the parts of a model, and why not: its limits and features against real sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from neuron_autoport.catalogue.entry import FEATURES, Entry
from neuron_autoport.catalogue.parts import Part
from neuron_autoport.catalogue.sizes import SIZES, completed


@dataclass(frozen=True)
class Fit:
    """An entry judged for one part.

    Attributes:
        part: the part of the model.
        phase: the judgement counts in this phase only; None where all are alike.
        reasons: why it does not fit; empty if it does.
        open: limits that only a call can tell, as text.
        unknown: limits on sizes of the model that its graphs and sites do not tell.
    """

    part: Part
    phase: str | None
    reasons: tuple[str, ...]
    open: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part.kind,
            "class": self.part.class_name,
            "count": self.part.count,
            "sizes": self.part.sizes,
            "asks_for": list(self.part.features),
            "phase": self.phase,
            "fits": self.fits,
            "reasons": list(self.reasons),
            "asked_of_each_call": list(self.open),
            "not_known": list(self.unknown),
        }


def merged(fits: Iterable[Fit]) -> list[Fit]:
    """The same judgement of one class said once, with the sizes that all of its parts have."""
    groups: dict[Any, list[Fit]] = {}
    for fit in fits:
        groups.setdefault(
            (fit.part.class_name, fit.phase, fit.reasons, fit.open, fit.unknown), []
        ).append(fit)
    return [_one(group) for group in groups.values()]


def _one(group: list[Fit]) -> Fit:
    parts = [f.part for f in group]
    first = parts[0]
    sizes = {n: v for n, v in first.sizes.items() if all(p.sizes.get(n) == v for p in parts)}
    part = replace(first, sizes=sizes, count=sum(p.count for p in parts))
    return replace(group[0], part=part)


def judge(
    entry: Entry,
    parts: Iterable[Part],
    *,
    tp: int = 1,
    target: str = "trn2",
    phases: tuple[str, ...] = (),
) -> list[Fit]:
    """`entry` against each part of its kind; by phase where the phases differ. Empty: no such part.

    Args:
        phases: only these; all that the entry has if there are none.
    """
    wanted = [p for p in entry.phases if not phases or p in phases]
    found: list[Fit] = []
    for part in parts:
        if part.kind not in entry.part or not wanted:
            continue
        by_phase = [_judge(entry, part, p, tp, target) for p in wanted]
        if len({(f.reasons, f.open, f.unknown) for f in by_phase}) == 1:
            found.append(replace(by_phase[0], phase=None))
        else:
            found += by_phase
    return found


def _judge(entry: Entry, part: Part, phase: str, tp: int, target: str) -> Fit:
    sizes = completed({**part.sizes, "tp": tp})
    reasons = [] if target in entry.targets else [f"it is for {' and '.join(entry.targets)} only"]
    reasons += [f"it does not do {FEATURES[f]}" for f in part.features if f not in entry.can]
    reasons += [f"it is for {FEATURES[f]} only" for f in entry.only if f not in part.features]
    open_: list[str] = []
    unknown: list[str] = []
    for need in entry.needs:
        no_window = "window" in need.names and "window" not in part.sizes
        if need.phase not in (None, phase) or no_window:  # a layer that sees all positions
            continue
        holds = need.holds(sizes)
        if holds is None:
            of_call = any(not SIZES[name].model for name in need.names - set(sizes))
            (open_ if of_call else unknown).append(need.limit)
        elif not holds:
            reasons.append(f"{need.limit} does not hold: {need.figures(sizes)}")
    return Fit(part, phase, tuple(reasons), (*open_, *entry.call_needs), tuple(unknown))
