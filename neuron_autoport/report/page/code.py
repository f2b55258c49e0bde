"""The source of a forward as HTML lines: the original with its sites marked, the rewritten beside it."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from neuron_autoport.report.places import char_column
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.spans import Span

_COMMENT = "# autoport: "


@dataclass(frozen=True)
class Line:
    """A line of source. number: in its file, or in the rewritten function; keys: sites it is of."""

    number: int
    html: Markup
    changed: bool
    keys: str


@dataclass(frozen=True)
class ClassCode:
    """Both forms of one forward. file: of the original; new: empty if nothing changes."""

    file: str
    first: int
    old: tuple[Line, ...]
    new: tuple[Line, ...]


@dataclass(frozen=True)
class Mark:
    """A marked expression: the key of the site or refusal, its source, and whether it is the whole."""

    key: str
    span: Span
    whole: bool


def class_code(plan: ClassPlan) -> ClassCode | None:
    """Both forms of the forward of a planned class; None if its source cannot be read."""
    try:
        lines, first = inspect.getsourcelines(plan.trace.forward)
    except (OSError, TypeError):
        return None
    file = inspect.getsourcefile(plan.trace.forward) or "?"
    old = [line.rstrip("\n") for line in lines]
    new_text = plan.new_source()
    new = textwrap.dedent(new_text).splitlines() if new_text is not None else []
    gone, come = _changed(textwrap.dedent("\n".join(old)).splitlines(), new)
    marks = [m for m in _marks(plan) if m.span.file == file]
    shown_old = tuple(
        _old_line(line, first + i, i in gone, marks) for i, line in enumerate(_undented(old))
    )
    keys = _new_keys(plan, new)
    shown_new = tuple(
        Line(i + 1, escape(line), i in come, keys.get(i, "")) for i, line in enumerate(new)
    )
    return ClassCode(file, first, shown_old, shown_new)


def site_key(number: int) -> str:
    """Key of a class's site, in marks and in the page's addresses."""
    return f"s{number}"


def refusal_key(number: int) -> str:
    """Key of a class's refusal."""
    return f"r{number}"


def _undented(lines: list[str]) -> list[tuple[str, int]]:
    """Lines without the function's own indentation, and how many columns that was."""
    depth = len(lines[0]) - len(lines[0].lstrip())
    return [(line[depth:], depth) if line[:depth].isspace() else (line, 0) for line in lines]


def _changed(old: list[str], new: list[str]) -> tuple[set[int], set[int]]:
    """Indices of the lines that only one of the two has."""
    if not new:
        return set(), set()
    gone: set[int] = set()
    come: set[int] = set()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag != "equal":
            gone |= set(range(a1, a2))
            come |= set(range(b1, b2))
    return gone, come


def _marks(plan: ClassPlan) -> Iterable[Mark]:
    for i, site in enumerate(plan.sites):
        yield Mark(site_key(i), site.span, True)
        for op in site.match.interior:
            if op.spans:
                yield Mark(site_key(i), op.spans[0], False)
    for i, refusal in enumerate(plan.refusals):
        if refusal.span is not None:
            yield Mark(refusal_key(i), refusal.span, True)


def _old_line(line: tuple[str, int], number: int, changed: bool, marks: list[Mark]) -> Line:
    """One line of the original; runs of characters of the same marks become one `<mark>`."""
    text, depth = line
    of: list[frozenset[str]] = [frozenset()] * len(text)
    for mark in marks:
        start, end = _columns(mark.span, number, depth, len(text))
        for i in range(start, end):
            of[i] |= {mark.key, "whole"} if mark.whole else {mark.key}
    out: list[Markup] = []
    start = 0
    for i in range(1, len(text) + 1):
        if i == len(text) or of[i] != of[start]:
            out.append(_run(text[start:i], of[start]))
            start = i
    keys = sorted(set().union(*of) - {"whole"})
    return Line(number, Markup("").join(out), changed, " ".join(keys))


def _columns(span: Span, line: int, depth: int, length: int) -> tuple[int, int]:
    """First and one past the last column of the span in this line, in characters from 0."""
    if not span.line <= line <= span.end_line:
        return 0, 0
    start = char_column(span.file, line, span.column) - depth if line == span.line else 0
    end = char_column(span.file, line, span.end_column) - depth
    return max(start, 0), min(end if line == span.end_line else length, length)


def _run(text: str, classes: frozenset[str]) -> Markup:
    if not classes or not text.strip():
        return escape(text)
    kind = "site" if any(c[0] == "s" for c in classes) else "refused"
    return Markup('<mark class="{} {}">{}</mark>').format(kind, " ".join(sorted(classes)), text)


def _new_keys(plan: ClassPlan, new: list[str]) -> dict[int, str]:
    """For each line of the rewritten function that a site's statement has: the site's key.

    A comment names the rule; its lines, and those of the statement below it, are of the sites of the rule.
    """
    statements = _statements("\n".join(new))
    found: dict[int, set[str]] = {}
    for i, line in enumerate(new):
        rule = line.strip().removeprefix(_COMMENT)
        if rule == line.strip():
            continue
        keys = {site_key(n) for n, s in enumerate(plan.sites) if s.rule.name == rule}
        below = next((j for j in range(i, len(new)) if not new[j].strip().startswith("#")), i)
        for j in range(i, statements.get(below, below) + 1):
            found.setdefault(j, set()).update(keys)
    return {i: " ".join(sorted(keys)) for i, keys in found.items()}


def _statements(source: str) -> dict[int, int]:
    """First to last line, both from 0, of every simple statement."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(source)) if source else ():
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            head = getattr(node, "body", None)
            end = head[0].lineno - 1 if isinstance(head, list) and head else node.end_lineno
            found[node.lineno - 1] = max(end - 1, node.lineno - 1)
    return found
