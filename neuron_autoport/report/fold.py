"""Fold a model's module structure: equal numbered siblings become one node with a range for a name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from neuron_autoport.port import Port
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.module_trace import ModuleTrace

_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
_SHOWN_RANGES = 4


@dataclass(frozen=True, eq=False)
class Folded:
    """Equal sibling modules. inside: rule of the parent's site that replaces them, if one does."""

    name: str
    paths: tuple[str, ...]
    plan: ClassPlan
    inside: str | None
    children: tuple[Folded, ...]


def fold(port: Port) -> Folded:
    """The whole model as a tree.

    Siblings are equal if they have the same plan: a plan belongs to one trace, and a trace holds those of
    all modules below it.
    """
    plans = {plan.trace: plan for plan in port.plans}
    return _node("", ("",), port.trace, plans, None)


def _node(
    name: str,
    paths: tuple[str, ...],
    trace: ModuleTrace,
    plans: dict[ModuleTrace, ClassPlan],
    inside: str | None,
) -> Folded:
    plan = plans[trace]
    replaced = {
        str(op.target): site.rule.name
        for site in plan.sites
        for op in site.match.interior
        if op.target and op.name != "param"
    }
    groups: dict[tuple[str, ModuleTrace, str | None], list[str]] = {}
    seen = set()
    for call in trace.children:
        if call.path not in seen:
            seen.add(call.path)
            key = (_template(call.path), call.trace, replaced.get(call.path))
            groups.setdefault(key, []).append(call.path)
    children = []
    for (template, part, rule), names in groups.items():
        shown = range_name(template, names)
        below = tuple(f"{p}.{n}" if p else n for p in paths for n in names)
        children.append(_node(shown, below, part, plans, rule))
    return Folded(name, paths, plan, inside, tuple(children))


def _template(path: str) -> str:
    """The path with its first number taken out."""
    return _NUMBER.sub("*", path, count=1)


def range_name(template: str, paths: list[str]) -> str:
    """`layers.0-4, 6-10, 12 ×11`: the numbers of equal siblings in order; long lists are cut."""
    if len(paths) == 1:
        return paths[0]
    numbers = sorted(int(m.group()) for p in paths if (m := _NUMBER.search(p)))
    ranges = list(_ranges(numbers))
    if len(ranges) > _SHOWN_RANGES:
        ranges = [*ranges[: _SHOWN_RANGES - 1], "…"]
    return f"{template.replace('*', ', '.join(ranges), 1)} ×{len(paths)}"


def _ranges(numbers: Iterable[int]) -> Iterable[str]:
    start = end = None
    for n in [*numbers, None]:
        if start is not None and end is not None and (n is None or n != end + 1):
            yield f"{start}-{end}" if end > start else str(start)
            start = None
        start, end = (n, n) if start is None else (start, n)
