"""Find a rule's pattern in a canonical graph.

`find(rule, graph)` gives every match and, where there is none, how far the best attempt got and
where it stopped. Equations are solved one after the other; `values.py` looks at their operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, permutations
from typing import Any

from neuron_autoport.rules.cuts import cut_of
from neuron_autoport.rules.match import NOTHING, Found, Match, NearMiss
from neuron_autoport.rules.pattern import ModulePattern, Statement
from neuron_autoport.rules.roles import NO_ROLES, Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.rules.values import Values
from neuron_autoport.trace.ops import Op, OpGraph


def find(rule: Rule, graph: OpGraph, roles: Roles = NO_ROLES) -> Found:
    """All matches of `rule` in `graph`, or the nearest miss; one that is sure beside matches, too.

    Args:
        roles: tells which role a child module has; without it no module has one.
    """
    if graph.by_name.keys().isdisjoint(rule.roots[0]):
        return NOTHING
    search = _Search(rule, graph, roles)
    matches = tuple(_distinct(search.run()))
    miss = search.near_miss()
    return Found(matches, miss if miss is not None and (miss.sure or not matches) else None)


def stop_at_rounding(rule: Rule, graph: OpGraph, roles: Roles) -> NearMiss | None:
    """How far the rule gets until a cast or a dtype is in the way, if that ever is."""
    search = _Search(rule, graph, roles, rounding=True)
    for _ in search.run():
        pass
    return search.near_miss()


def _distinct(matches: Iterator[Match]) -> Iterator[Match]:
    seen = set()
    for match in matches:
        key = frozenset(op.index for op in match.interior)
        if key not in seen:
            seen.add(key)
            yield match


class _Search:
    def __init__(self, rule: Rule, graph: OpGraph, roles: Roles, rounding: bool = False) -> None:
        self.rule, self.graph = rule, graph
        self.statements = [*rule.match, *rule.given]
        self.values = Values(rule, roles, rule.sees_casts, rounding)

    def run(self) -> Iterator[Match]:
        yield from self.solve(0, Match({}))

    def near_miss(self) -> NearMiss | None:
        return self.values.best if self.values.best.done else None

    def solve(self, index: int, match: Match) -> Iterator[Match]:
        if index == len(self.statements):
            yield match
            return
        given = index >= len(self.rule.match)
        for found in self.equation(index, match):
            # What is only `given` is looked at, not replaced.
            kept = replace(found, interior=match.interior) if given else found
            yield from self.solve(index + 1, kept)

    def equation(self, index: int, match: Match) -> Iterator[Match]:
        statement = self.statements[index]
        if statement.split or statement.cut:
            places = self.places(index, match, ())
            yield from (self.slices if statement.split else self.cut)(statement, match, places)
            return
        (name,) = statement.targets
        bound = match.values.get(name)
        if isinstance(bound, Op):
            yield from self.values.at(statement.pattern, bound, match)
            return
        outputs = self.rule.outputs
        others = [match.values[n] for n in outputs if n in match.values]
        # An output is the operation itself, never a view of it.
        for op in self.places(index, match, others if name in outputs else ()):
            for found in self.values.operation(statement.pattern, op, match):
                yield found.bind(name, op)

    def places(self, index: int, match: Match, taken: Sequence[Any]) -> list[Op]:
        """Operations to try an equation at but those taken, in the order they run.

        Beside those it can hold at, the first other one: all of these miss by the same number of steps, and the
        first of equally near misses is told. One of no steps is never told.
        """
        roots = self.rule.roots[index]
        found = self.graph.named(roots)
        if match.steps:
            others = (op for op in self.graph.ops if op.name not in roots and op not in taken)
            found = sorted([*found, *islice(others, 1)], key=lambda op: op.index)
        elif isinstance(pattern := self.statements[index].pattern, ModulePattern):
            found = self.calls(pattern.name)
        return [op for op in found if op not in taken] if taken else found

    def calls(self, name: str) -> list[Op]:
        """The calls that `name` may be, those of one trace asked about once. One with keywords is of a layer."""
        alike = self.graph.calls_alike
        found = [ops for ops in alike if self.values.reference(name, ops[0]) is not None]
        calls = [op for ops in found for op in ops if not op.attrs.get("kwargs")]
        return sorted(calls, key=lambda op: op.index) if len(found) > 1 else calls

    def slices(self, statement: Statement, match: Match, places: list[Op]) -> Iterator[Match]:
        """Slices of the last dimension that follow each other and fill it."""
        for base in places:
            for found in self.values.operation(statement.pattern, base, match):
                pieces = [u for u in base.users if u.name == "slice" and u.attrs["dim"] == -1]
                pieces.sort(key=lambda u: u.attrs["start"])
                ends = [0, *(u.attrs["end"] for u in pieces)]
                starts = [u.attrs["start"] for u in pieces]
                filled = starts == ends[:-1] and ends[-1] == base.shape[-1]
                if len(pieces) != len(statement.targets) or not filled:
                    message = f"not cut into {len(statement.targets)} parts that fill it"
                    self.values.miss(found, message, base)
                    continue
                between = [u for u in base.users if u.name == "pieces"]
                yield _named(found.take(*pieces, *between, steps=0), statement, pieces)

    def cut(self, statement: Statement, match: Match, places: list[Op]) -> Iterator[Match]:
        """Values that only layout steps lead to, each column in exactly one of them."""
        count = len(statement.targets)
        for base in places:
            for found in self.values.operation(statement.pattern, base, match):
                cut = cut_of(base, count)
                if isinstance(cut, str):
                    self.values.miss(found, cut, base)
                    continue
                taken = found.take(*cut.between, *cut.parts, steps=0)
                for order in permutations(cut.parts):
                    names = zip(statement.targets, order, strict=True)
                    columns = {name: cut.parts[part] for name, part in names}
                    yield replace(
                        _named(taken, statement, list(order)), columns={**found.columns, **columns}
                    )


def _named(match: Match, statement: Statement, values: list[Op]) -> Match:
    for name, value in zip(statement.targets, values, strict=True):
        match = match.bind(name, value)
    return match
