"""What changed from one report to another: `autoport inspect MODEL --compare OLD.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from neuron_autoport.errors import ModelError
from neuron_autoport.report import schema as s
from neuron_autoport.report.numbers import percent


@dataclass(frozen=True)
class Change:
    """lost: something is fused no more, or newly refused or unproved."""

    text: str
    lost: bool


def read_report(file: Path) -> s.Report:
    """A report that `inspect --json` wrote.

    Raises:
        ModelError: the file cannot be read, or is no such report.
    """
    step = "autoport inspect MODEL --json > FILE writes one"
    try:
        return s.Report.model_validate_json(file.read_bytes(), by_alias=True)
    except OSError as error:
        raise ModelError(f"The report cannot be read: {error.strerror}.", str(file), step) from None
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(x) for x in first["loc"]) or "the file"
        what = f"This is no report of inspect --json (schema 1): {at}: {first['msg']}."
        raise ModelError(what, str(file), step) from None


def changes(old: s.Report, new: s.Report) -> Iterator[Change]:
    """In order: versions, sites, reasons, proof, shares. Nothing if all of these are equal."""
    for name in s.Versions.model_fields:
        before, after = getattr(old.versions, name), getattr(new.versions, name)
        if before != after:
            yield Change(f"{name} {before} → {after}", False)
    before_sites, after_sites = _sites(old), _sites(new)
    for key in sorted(before_sites | after_sites):
        a, b = before_sites[key], after_sites[key]
        if a != b:
            yield Change(f"{key}: {a} → {b} sites", b < a)
    before_refused, after_refused = _refusals(old), _refusals(new)
    for key in sorted(before_refused | after_refused):
        a, b = before_refused[key], after_refused[key]
        if a != b:
            yield Change(f"{key}: refused {a} → {b} times", b > a)
    dropped = {f"{c.name}: {r}" for c in new.classes for r in c.dropped}
    dropped -= {f"{c.name}: {r}" for c in old.classes for r in c.dropped}
    yield from (Change(f"{x} failed its proof", True) for x in sorted(dropped))
    for name in ("sites", "flops", "bytes", "weight_bytes"):
        before, after = (getattr(r.coverage, name).percent for r in (old, new))
        if before != after:
            text = f"{name.replace('_', ' ')} fused: {percent(before)} → {percent(after)}"
            yield Change(text, after < before)


def _sites(report: s.Report) -> Counter[str]:
    found: Counter[str] = Counter()
    for cls in report.classes:
        for site in cls.sites:
            found[f"{cls.name}: {site.rule} → {site.call}"] += len(cls.paths)
    return found


def _refusals(report: s.Report) -> Counter[str]:
    found: Counter[str] = Counter()
    for cls in report.classes:
        for refusal in cls.refusals:
            found[f"{cls.name}: {refusal.rule} ({refusal.code})"] += len(cls.paths)
        if cls.end is not None:
            found[f"{cls.name}: not traced to its end ({cls.end.code})"] += len(cls.paths)
    return found
