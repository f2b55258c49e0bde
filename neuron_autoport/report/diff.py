"""Unified diffs of the rewritten forwards, with the line numbers of the original file."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from neuron_autoport.port import Port
from neuron_autoport.report.places import short_file
from neuron_autoport.rewrite.plan import ClassPlan

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class ClassDiff:
    """The changes of one class: where its forward starts, and the lines of a unified diff."""

    class_name: str
    file: str
    line: int
    lines: tuple[str, ...]


def class_diffs(port: Port, model_folder: Path | None = None, context: int = 3) -> list[ClassDiff]:
    """One diff per class whose forward changes; plans that change it alike are shown once.

    Args:
        model_folder: where the model's own code lies. context: unchanged lines around a change.
    """
    found: dict[tuple[type, str], ClassDiff] = {}
    for plan in port.plans:
        new = plan.new_source()
        key = (plan.trace.module_class, new or "")
        if new is not None and key not in found:
            found[key] = _diff(plan, new, model_folder, context)
    return list(found.values())


def _diff(plan: ClassPlan, new: str, model_folder: Path | None, context: int) -> ClassDiff:
    lines, first = inspect.getsourcelines(plan.trace.forward)
    file = short_file(inspect.getsourcefile(plan.trace.forward) or "?", model_folder)
    old = textwrap.dedent("".join(lines)).splitlines()
    changed = textwrap.dedent(new).splitlines()
    body = tuple(_unified(old, changed, first, context))
    return ClassDiff(plan.trace.module_class.__name__, file, first, body)


def _unified(old: list[str], new: list[str], first: int, context: int) -> Iterator[str]:
    """Hunks as `diff -u` writes them, lines counted from `first`."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        a, b = group[0][1], group[0][3]
        sizes = (group[-1][2] - a, group[-1][4] - b)
        yield f"@@ -{a + first},{sizes[0]} +{b + first},{sizes[1]} @@"
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[a1:a2])
                continue
            yield from (f"-{line}" for line in old[a1:a2])
            yield from (f"+{line}" for line in new[b1:b2])


def print_diffs(diffs: list[ClassDiff], console: Console) -> None:
    """All diffs; long lines are not broken, so that the text stays a diff."""
    for diff in diffs:
        where = f"{diff.file}:{diff.line}"
        header = [
            f"--- {where} {diff.class_name}.forward",
            f"+++ {diff.class_name}.forward, rewritten",
        ]
        for line in header:
            console.print(Text(line, style="bold"), soft_wrap=True)
        for line in diff.lines:
            console.print(Text(line, style=_STYLES.get(line[:1], "")), soft_wrap=True)
        console.print()
