"""Find a rule's pattern in a canonical graph.

`find(rule, graph)` gives every match and, where there is none, how far the best attempt got and
where it stopped. Matching is structural: operands of sums and products in either order, views are
looked through, casts too unless the rule names one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from neuron_autoport.rules.match import Found, Match, ModuleRef, NearMiss
from neuron_autoport.rules.pattern import (
    COMMUTATIVE,
    After,
    ChoicePattern,
    Const,
    Like,
    ModulePattern,
    OpPattern,
    Pattern,
    Statement,
    Var,
    count_steps,
    looks_at_casts,
)
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.ops import Op, OpGraph, is_float


def find(rule: Rule, graph: OpGraph) -> Found:
    """All matches of `rule` in `graph`, or the nearest miss."""
    search = _Search(rule, graph)
    matches = tuple(_distinct(search.run()))
    return Found(matches, None if matches else search.near_miss())


def _distinct(matches: Iterator[Match]) -> Iterator[Match]:
    seen = set()
    for match in matches:
        key = frozenset(op.index for op in match.interior)
        if key not in seen:
            seen.add(key)
            yield match


class _Search:
    def __init__(self, rule: Rule, graph: OpGraph) -> None:
        self.rule, self.graph = rule, graph
        self.statements = [*rule.match, *rule.given]
        self.casts = any(looks_at_casts(s.pattern) for s in rule.match)
        self.total = sum(count_steps(s.pattern) for s in self.statements)
        self.best: tuple[int, str, Op | None] = (0, "nothing like it", None)

    def run(self) -> Iterator[Match]:
        yield from self.solve(0, Match({}))

    def near_miss(self) -> NearMiss | None:
        done, reason, op = self.best
        return NearMiss(done, self.total, reason, op) if done else None

    def miss(self, match: Match, reason: str, value: Any) -> None:
        if match.steps > self.best[0]:
            self.best = (match.steps, reason, value if isinstance(value, Op) else None)

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
        if statement.split:
            yield from self.slices(statement, match)
            return
        (name,) = statement.targets
        bound = match.values.get(name)
        if isinstance(bound, Op):
            yield from self.at(statement.pattern, bound, match)
            return
        for op in self.graph.ops:  # an output is the operation itself, never a view of it
            for found in self.operation(statement.pattern, op, match):
                yield found.bind(name, op)

    def slices(self, statement: Statement, match: Match) -> Iterator[Match]:
        for base in self.graph.ops:
            for found in self.operation(statement.pattern, base, match):
                pieces = [u for u in base.users if u.name == "slice" and u.attrs["dim"] == -1]
                pieces.sort(key=lambda u: u.attrs["start"])
                ends = [0, *(u.attrs["end"] for u in pieces)]
                starts = [u.attrs["start"] for u in pieces]
                filled = starts == ends[:-1] and ends[-1] == base.shape[-1]
                if len(pieces) != len(statement.targets) or not filled:
                    self.miss(
                        found, f"not cut into {len(statement.targets)} parts that fill it", base
                    )
                    continue
                between = [u for u in base.users if u.name == "pieces"]
                named = found.take(*pieces, *between, steps=0)
                for name, piece in zip(statement.targets, pieces, strict=True):
                    named = named.bind(name, piece)
                yield named

    def at(self, pattern: Pattern, value: Any, match: Match) -> Iterator[Match]:
        """Matches of `pattern` with its root at `value`."""
        if isinstance(pattern, Var):
            yield from self.variable(pattern, value, match)
        elif isinstance(pattern, Const):
            if is_float(value) and float(value) == float(pattern.value):
                yield match
            else:
                self.miss(match, f"expected {pattern.value}", value)
        elif isinstance(pattern, After):
            yield from self.after(pattern, value, match)
        elif isinstance(value, Op):
            inner, skipped = self.look_through(pattern, value)
            yield from self.operation(pattern, inner, match.take(*skipped, steps=0))
        else:
            self.miss(match, f"expected {_describe(pattern)}", value)

    def look_through(self, pattern: Pattern, op: Op) -> tuple[Op, tuple[Op, ...]]:
        skipped: list[Op] = []
        wants_cast = isinstance(pattern, Like) or (
            isinstance(pattern, OpPattern) and pattern.name == "fp32"
        )
        any_view = isinstance(pattern, OpPattern) and pattern.name == "attention"
        while (op.name == "view" and (any_view or _keeps_last(op))) or (
            op.name == "cast" and not self.casts and not wants_cast and _between_floats(op)
        ):
            skipped.append(op)
            op = op.inputs[0]
        return op, tuple(skipped)

    def variable(self, pattern: Var, value: Any, match: Match) -> Iterator[Match]:
        kind = self.rule.kind_of(pattern.name)
        if kind == "number" and not is_float(value):
            self.miss(match, f"`{pattern.name}` must be a number", value)
            return
        if kind == "parameter":
            inner, skipped = (
                self.look_through(Const(0), value) if isinstance(value, Op) else (value, ())
            )
            if not isinstance(inner, Op) or inner.name != "param":
                self.miss(match, f"`{pattern.name}` must be a parameter", value)
                return
            value, match = inner, match.take(*skipped, steps=0)
        elif kind == "value" and not isinstance(value, Op):
            self.miss(match, f"`{pattern.name}` must be a tensor", value)
            return
        known = match.values.get(pattern.name)
        if known is None:
            yield match.bind(pattern.name, value)
        elif known is value or (is_float(value) and known == value):
            yield match
        else:
            self.miss(match, f"`{pattern.name}` is another value here", value)

    def operation(self, pattern: Pattern, op: Op, match: Match) -> Iterator[Match]:
        if isinstance(pattern, ModulePattern):
            yield from self.module(pattern, op, match)
        elif isinstance(pattern, ChoicePattern):
            names = self.rule.choices[pattern.name]
            if op.name not in names:
                self.miss(match, f"expected one of {', '.join(names)}", op)
                return
            bound = match.take(op).bind(pattern.name, op.name)
            yield from self.operands(pattern.inputs, op.inputs, bound)
        elif isinstance(pattern, Like):
            for found in self.cast(op, pattern.value, match):
                model = found.values.get(pattern.model)
                if isinstance(model, Op) and model.dtype == op.dtype:
                    yield found
                else:
                    self.miss(found, f"cast is not to the dtype of `{pattern.model}`", op)
        elif isinstance(pattern, OpPattern) and pattern.name == "fp32":
            if op.dtype is torch.float32:
                yield from self.cast(op, pattern.inputs[0], match)
            else:
                self.miss(match, "expected a cast to float32", op)
        elif isinstance(pattern, OpPattern):
            yield from self.plain(pattern, op, match)

    def cast(self, op: Op, inner: Pattern, match: Match) -> Iterator[Match]:
        if op.name != "cast":
            self.miss(match, "expected a cast", op)
            return
        yield from self.at(inner, op.inputs[0], match.take(op))

    def plain(self, pattern: OpPattern, op: Op, match: Match) -> Iterator[Match]:
        if op.name != pattern.name:
            self.miss(match, f"expected {_describe(pattern)}", op)
            return
        for key, wanted in pattern.attrs:
            if op.attrs.get(key) != wanted:
                self.miss(match, f"expected {key}={wanted}, found {op.attrs.get(key)}", op)
                return
        if _spreads_both(op):
            self.miss(match, "its operands are spread over each other", op)
            return
        taken = match.take(op)
        yield from self.operands(pattern.inputs, op.inputs, taken)
        if pattern.name in COMMUTATIVE:
            yield from self.operands(pattern.inputs, op.inputs[::-1], taken)

    def operands(self, patterns: Any, values: Any, match: Match) -> Iterator[Match]:
        if len(values) < len(patterns) or any(v is not None for v in values[len(patterns) :]):
            return
        if not patterns:
            yield match
            return
        for found in self.at(patterns[0], values[0], match):
            yield from self.operands(patterns[1:], values[1:], found)

    def module(self, pattern: ModulePattern, op: Op, match: Match) -> Iterator[Match]:
        facts = linear_of(op.trace) if op.name == "module" and op.trace is not None else None
        if facts is None or op.attrs.get("kwargs"):
            self.miss(match, f"`{pattern.name}` must be a linear module", op)
            return
        known = match.values.get(pattern.name)
        if known is not None and known.op is not op:
            self.miss(match, f"`{pattern.name}` is another module here", op)
            return
        taken = {r.path for r in match.values.values() if isinstance(r, ModuleRef)}
        if known is None and op.target in taken:
            self.miss(match, f"{op.target} cannot serve twice", op)
            return
        bound = match.take(op).bind(pattern.name, ModuleRef(str(op.target), facts, op))
        yield from self.operands(pattern.inputs, op.inputs, bound)

    def after(self, pattern: After, value: Any, match: Match) -> Iterator[Match]:
        source = match.values.get(pattern.name)
        outputs = set(self.rule.outputs) - {pattern.name}
        others = [v for n in outputs if isinstance(v := match.values.get(n), Op)]
        past = ancestry(value) if isinstance(value, Op) else set()
        if source not in past:
            self.miss(match, f"is not computed from `{pattern.name}`", value)
        elif any(other in past for other in others):
            self.miss(match, f"mixes `{pattern.name}` with another of the outputs", value)
        else:
            yield match.take(steps=1)


_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def _keeps_last(view: Op) -> bool:
    """Does a view leave the last dimension alone? Else what follows works along another axis."""
    before = view.inputs[0].shape
    return bool(view.attrs.get("same")) or before[-1:] == view.shape[-1:]


def _between_floats(cast: Op) -> bool:
    """A cast to an integer, or to a narrow float, computes something: it rounds."""
    return cast.dtype in _FLOATS and cast.inputs[0].dtype in _FLOATS


def _spreads_both(op: Op) -> bool:
    """Is each of two operands broadcast, as in an outer product?"""
    sizes = [math.prod(v.shape) for v in op.inputs if isinstance(v, Op)]
    return len(sizes) == 2 and math.prod(op.shape) > max(sizes)


def ancestry(op: Op) -> set[Op]:
    """`op` and every value it is computed from."""
    seen, todo = set(), [op]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo.extend(current.operands())
    return seen


def _describe(pattern: Pattern) -> str:
    if isinstance(pattern, OpPattern | ModulePattern | ChoicePattern):
        return f"`{pattern.name}`"
    return "a cast" if isinstance(pattern, Like) else "a value"
