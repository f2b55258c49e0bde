"""Find a rule's pattern in a canonical graph.

`find(rule, graph)` gives every match and, where there is none, how far the best attempt got and
where it stopped. Equations are solved one after the other; `values.py` looks at their operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from neuron_autoport.rules.cuts import cut_of
from neuron_autoport.rules.match import Found, Match, NearMiss
from neuron_autoport.rules.pattern import Statement
from neuron_autoport.rules.roles import NO_ROLES, Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.rules.values import Values
from neuron_autoport.trace.ops import Op, OpGraph


def find(rule: Rule, graph: OpGraph, roles: Roles = NO_ROLES) -> Found:
    """All matches of `rule` in `graph`, or the nearest miss; one that is sure beside matches, too.

    Args:
        roles: tells which role a child module has; without it no module has one.
    """
    search = _Search(rule, graph, roles)
    matches = tuple(_distinct(search.run()))
    miss = search.near_miss()
    return Found(matches, miss if miss is not None and (miss.sure or not matches) else None)


def _distinct(matches: Iterator[Match]) -> Iterator[Match]:
    seen = set()
    for match in matches:
        key = frozenset(op.index for op in match.interior)
        if key not in seen:
            seen.add(key)
            yield match


class _Search:
    def __init__(self, rule: Rule, graph: OpGraph, roles: Roles) -> None:
        self.rule, self.graph = rule, graph
        self.statements = [*rule.match, *rule.given]
        self.values = Values(rule, roles, rule.sees_casts)
        self.total = rule.steps

    def run(self) -> Iterator[Match]:
        yield from self.solve(0, Match({}))

    def near_miss(self) -> NearMiss | None:
        done, reason, op, sure = self.values.best
        return NearMiss(done, self.total, reason, op, sure) if done else None

    def solve(self, index: int, match: Match) -> Iterator[Match]:
        if index == len(self.statements):
            yield match
            return
        statement = self.statements[index]
        given = index >= len(self.rule.match)
        for found in self.equation(statement, match):
            # What is only `given` is looked at, not replaced.
            kept = replace(found, interior=match.interior) if given else found
            yield from self.solve(index + 1, kept)

    def equation(self, statement: Statement, match: Match) -> Iterator[Match]:
        if statement.split or statement.cut:
            yield from (self.slices if statement.split else self.cut)(statement, match)
            return
        (name,) = statement.targets
        bound = match.values.get(name)
        if isinstance(bound, Op):
            yield from self.values.at(statement.pattern, bound, match)
            return
        outputs = self.rule.outputs
        others = {id(match.values[n]) for n in outputs if n in match.values}
        taken = others if name in outputs else set[int]()
        for op in self.graph.ops:  # an output is the operation itself, never a view of it
            if id(op) in taken:
                continue
            for found in self.values.operation(statement.pattern, op, match):
                yield found.bind(name, op)

    def slices(self, statement: Statement, match: Match) -> Iterator[Match]:
        """Slices of the last dimension that follow each other and fill it."""
        for base in self.graph.ops:
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

    def cut(self, statement: Statement, match: Match) -> Iterator[Match]:
        """Values that only layout steps lead to, each column in exactly one of them."""
        count = len(statement.targets)
        for base in self.graph.ops:
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
