"""What a report holds against a model, one value per finding, for formats that other tools read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from neuron_autoport.report import schema as s
from neuron_autoport.rewrite.reasons import CODES, STATED

LIMIT, DROPPED = "AP401", "AP701"


@dataclass(frozen=True)
class Finding:
    """level: error (a failed proof), warning (something a rule nearly fused), or note (a stated limit).

    place: where it is in the source, if that is known. message: one sentence or more, no line break.
    """

    code: str
    level: Literal["error", "warning", "note"]
    message: str
    place: s.Place | None


def findings(report: s.Report) -> Iterator[Finding]:
    """All findings, the classes in the report's order; of equal ones only the first."""
    unserved = report.model.unserved
    if unserved is not None:
        code, _, message = unserved.partition(": ")
        yield Finding(code, "warning", message, None)
    seen = set()
    for finding in (f for cls in report.classes for f in _of_class(cls, report)):
        if finding not in seen:
            seen.add(finding)
            yield finding


def _of_class(cls: s.ClassInfo, report: s.Report) -> Iterator[Finding]:
    if cls.end is not None:
        message = f"{cls.name} was not traced to its end: {cls.end.message}"
        yield Finding(cls.end.code, "warning", message, None)
    for rule in cls.dropped:
        yield Finding(DROPPED, "error", f"{rule} in {cls.name}: {CODES[DROPPED]}", None)
    for w in cls.warnings:
        yield Finding(w.code, "warning", f"{cls.name}: {w.message}", w.place)
    for r in cls.refusals:
        level: Literal["note", "warning"] = "note" if r.code == STATED else "warning"
        steps = f" ({r.steps} steps)" if r.steps != "all" else ""
        yield Finding(r.code, level, f"{r.rule} in {cls.name}: {r.message}{steps}", r.place)
    for site in cls.sites:
        for limit in site.limits:
            ranks = f"; it holds from tp {limit.holds_from_tp}" if limit.holds_from_tp else ""
            message = f"{site.call} in {cls.name} runs in torch on {report.target.name}"
            message += f" at tp {report.target.tp}: {limit.text} ({limit.figures}){ranks}"
            yield Finding(LIMIT, "note", message, site.place)
