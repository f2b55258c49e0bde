"""Fold a model's module structure: equal siblings become one node, named by their range."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from neuron_autoport.port import Port
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.module_trace import ChildCall, ModuleTrace

_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
_SHOWN_RANGES = 4


@dataclass(frozen=True, eq=False)
class Folded:
    """Equal siblings. plan: of the first; inside: rule of the parent's site that replaces them."""

    name: str
    paths: tuple[str, ...]
    plan: ClassPlan
    inside: str | None
    children: tuple[Folded, ...]


def fold(port: Port) -> Folded:
    """The whole model as a tree. Siblings are equal if a report has the same to say of both."""
    return _Fold(port).node("", ("",), port.trace, None)


class _Fold:
    def __init__(self, port: Port) -> None:
        self.plans = {plan.trace: plan for plan in port.plans}
        self.looks: dict[ModuleTrace, int] = {}
        self.numbers: dict[object, int] = {}

    def node(
        self, name: str, paths: tuple[str, ...], trace: ModuleTrace, inside: str | None
    ) -> Folded:
        plan = self.plans[trace]
        replaced = {
            str(op.target): site.rule.name
            for site in plan.sites
            for op in site.match.interior
            if op.target and op.name != "param"
        }
        groups: dict[tuple[str, int, str | None], list[ChildCall]] = {}
        for call in _distinct(trace):
            key = (_template(call.path), self.look(call.trace), replaced.get(call.path))
            groups.setdefault(key, []).append(call)
        children = []
        for (template, _, rule), calls in groups.items():
            names = [c.path for c in calls]
            below = tuple(f"{p}.{n}" if p else n for p in paths for n in names)
            shown = range_name(template, names)
            children.append(self.node(shown, below, calls[0].trace, rule))
        return Folded(name, paths, plan, inside, tuple(children))

    def look(self, trace: ModuleTrace) -> int:
        """A number that is the same for traces of which a report says the same.

        Their plans may differ in what is not shown, such as a constant that grows by layer.
        """
        if trace not in self.looks:
            plan = self.plans[trace]
            seen = (
                trace.module_class,
                linear_of(trace),
                tuple((s.rule.name, s.weights, *s.found.items()) for s in plan.sites),
                plan.refusals,
                plan.without,
                trace.end,
                tuple((c.path, self.look(c.trace)) for c in _distinct(trace)),
            )
            self.looks[trace] = self.numbers.setdefault(seen, len(self.numbers))
        return self.looks[trace]


def _distinct(trace: ModuleTrace) -> list[ChildCall]:
    """The children by path, each once, in the order of their first call."""
    return list({c.path: c for c in reversed(trace.children)}.values())[::-1]


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
