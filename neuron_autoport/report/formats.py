"""The report as other tools take it: SARIF for code scanning, workflow commands, Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from neuron_autoport.report import schema as s
from neuron_autoport.report.findings import Finding, findings
from neuron_autoport.report.numbers import count, fused_text, percent, seconds
from neuron_autoport.report.tree import site_facts
from neuron_autoport.rewrite.reasons import CODES

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


def sarif(report: s.Report) -> str:
    """SARIF 2.1.0, one run; every code that was found is a rule of it."""
    found = list(findings(report))
    codes = sorted({f.code for f in found})
    rules = [
        {"id": code, "shortDescription": {"text": CODES.get(code, code)},
         "help": {"text": f"autoport explain {code}"}}
        for code in codes
    ]  # fmt: skip
    driver = {"name": "neuron-autoport", "version": report.versions.autoport, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(f, codes) for f in found],
    }
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(finding: Finding, codes: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": finding.level,
        "message": {"text": finding.message},
    }
    place = finding.place
    if place is not None:
        region = {
            "startLine": place.line,
            "startColumn": place.column,
            "endColumn": place.end_column,
        }
        location = {"artifactLocation": {"uri": place.file}, "region": region}
        result["locations"] = [{"physicalLocation": location}]
    return result


def github(report: s.Report) -> str:
    """Workflow commands of GitHub Actions, one a line; the summary is the last."""
    lines = [_command(f) for f in findings(report)]
    c = report.coverage
    text = f"{report.model.name}: {fused_text(c)}, "
    text += f"{percent(c.flops.percent)} of FLOPs"
    return "\n".join([*lines, f"::notice title=autoport inspect::{_data(text)}"])


def _command(finding: Finding) -> str:
    fields = {"title": f"autoport {finding.code}"}
    if finding.place is not None:
        p = finding.place
        fields |= {"file": p.file, "line": str(p.line), "col": str(p.column)}
        fields |= {"endColumn": str(p.end_column)}
    listed = ",".join(f"{k}={_property(v)}" for k, v in fields.items())
    return f"::{_GITHUB[finding.level]} {listed}::{_data(finding.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(report: s.Report) -> str:
    """A short page: summary, sites, what was found against them, leftovers."""
    model, c = report.model, report.coverage
    lines = [
        f"# {model.name}: {model.architecture}",
        "",
        f"{count(model.parameters)} parameters, traced in {model.dtype} with transformers "
        f"{report.versions.transformers} in {seconds(report.seconds)} s; "
        f"target {report.target.name}, tp {report.target.tp}.",
        "",
        f"**{fused_text(c).capitalize()}**: {percent(c.flops.percent)} of FLOPs, "
        f"{percent(c.weight_bytes.percent)} of weight bytes (per token, context {c.context}).",
    ]
    sites = [
        (x.rule, f"`{x.call}`", cls.name, str(len(cls.paths)), ", ".join(site_facts(x)), f"`{x.place}`")
        for cls in report.classes for x in cls.sites
    ]  # fmt: skip
    lines += _table("Sites", ("rule", "call", "class", "×", "found", "at"), sites)
    found = [
        (f.code, f.level, f.message, f"`{f.place}`" if f.place else "") for f in findings(report)
    ]
    lines += _table("Findings", ("code", "level", "what", "at"), found)
    rest = [
        (", ".join(x.modules or x.operations) or x.kind, x.class_name, str(x.calls),
         percent(x.flops_share), percent(x.bytes_share))
        for x in report.leftovers
    ]  # fmt: skip
    lines += _table("Left to torch", ("operations", "class", "×", "FLOPs", "bytes"), rest)
    return "\n".join(lines)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A section with a table; nothing if it has no rows."""
    if not rows:
        return []
    lines = [_line(cells) for cells in (head, ("---",) * len(head), *rows)]
    return ["", f"## {title}", "", *lines]


def _line(cells: tuple[str, ...]) -> str:
    """A row of a table; what would end a cell or the row is made harmless."""
    plain = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(plain) + " |"
