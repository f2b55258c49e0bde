"""Does a pattern hold at a value? The half of the matcher that looks at operands.

Structural: operands of sums and products in either order, views are looked through, casts too unless
the rule names one. Each method gives every way it can hold, with what that binds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from neuron_autoport.rules.derived import DERIVED
from neuron_autoport.rules.layout import between_floats, keeps_last, no_linear_between, spreads_both
from neuron_autoport.rules.match import Match, ModuleRef, NearMiss, RoleRef
from neuron_autoport.rules.pattern import (
    COMMUTATIVE,
    After,
    ChoicePattern,
    Const,
    Either,
    Like,
    Maybe,
    ModulePattern,
    OpPattern,
    Past,
    Pattern,
    Var,
)
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.attention_ops import attention_operands
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.ops import Op, ancestry, is_float

_LOOKED_THROUGH = frozenset({"view", "cast"})


class Values:
    """Matches patterns of one rule at values of a graph; keeps the best failed attempt.

    Args:
        roles: tells which role a child module has. casts: does the rule name casts?
        rounding: of failed attempts, keep only those where a cast or a dtype was in the way?
    """

    def __init__(self, rule: Rule, roles: Roles, casts: bool, rounding: bool = False) -> None:
        self.rule, self.roles, self.casts, self.rounding = rule, roles, casts, rounding
        self.best = NearMiss(0, rule.steps, "nothing like it", None)

    def miss(self, match: Match, reason: str, value: Any, sure: bool = False) -> None:
        if not self.rounding:
            self._keep(match, reason, value, sure)

    def misrounds(self, match: Match, reason: str, value: Any) -> None:
        """A miss because of a cast or a dtype."""
        self._keep(match, reason, value, False)

    def _keep(self, match: Match, reason: str, value: Any, sure: bool) -> None:
        best = self.best
        if (sure, match.steps) > (best.sure, best.done) and match.steps:
            passed, op = frozenset(match.interior), match.place_of(value)
            self.best = NearMiss(match.steps, best.total, reason, op, sure, passed)

    def lacks(self, pattern: Pattern, match: Match, value: Any) -> None:
        """A miss because the value is not what the pattern asks for; worded only if it is the nearest so far."""
        if match.steps > self.best.done and not self.best.sure:
            self.miss(match, f"expected {_describe(pattern)}", value)

    def at(self, pattern: Pattern, value: Any, match: Match) -> Iterator[Match]:
        """Matches of `pattern` with its root at `value`."""
        if isinstance(pattern, Var):
            yield from self.variable(pattern, value, match)
        elif isinstance(pattern, Const):
            wanted = pattern.value
            if value is wanted or (is_float(value) and is_float(wanted) and value == wanted):
                yield match
            else:
                self.miss(match, f"expected {wanted}", value)
        elif isinstance(pattern, After):
            yield from self.after(pattern, value, match)
        elif isinstance(pattern, Past):
            yield from self.past(pattern, value, match)
        elif isinstance(pattern, Either):
            for option in pattern.options:
                yield from self.at(option, value, _without(match, pattern.absent(option)))
        elif isinstance(pattern, Maybe):
            yield from self.at(pattern.whole, value, match)
            yield from self.at(pattern.rest, value, _without(match, pattern.absent))
        elif isinstance(value, Op):
            inner, skipped = self.look_through(pattern, value)
            yield from self.operation(pattern, inner, match.take(*skipped, steps=0))
        else:
            self.lacks(pattern, match, value)

    def look_through(self, pattern: Pattern, op: Op) -> tuple[Op, tuple[Op, ...]]:
        if op.name not in _LOOKED_THROUGH:
            return op, ()
        skipped: list[Op] = []
        wants_cast = isinstance(pattern, Like) or (
            isinstance(pattern, OpPattern) and pattern.name == "fp32"
        )
        any_view = isinstance(pattern, OpPattern) and pattern.name == "attention"
        wants_view = isinstance(pattern, OpPattern) and pattern.name == "unsqueeze"
        while (op.name == "view" and (any_view or keeps_last(op))) or (
            op.name == "cast" and not self.casts and not wants_cast and between_floats(op)
        ):
            if wants_view and not op.attrs.get("same"):
                break
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
        elif kind in ("value", "float32") and not isinstance(value, Op):
            self.miss(match, f"`{pattern.name}` must be a tensor", value)
            return
        elif kind == "float32" and value.dtype is not torch.float32:
            self.misrounds(match, f"`{pattern.name}` must be in float32", value)
            return
        known = match.values.get(pattern.name)
        if pattern.name not in match.values:
            yield match.bind(pattern.name, value)
        elif known is value or (is_float(value) and known == value):
            yield match
        elif isinstance(known, Op) and isinstance(value, Op) and value.name == "view":
            yield from self.viewed(pattern.name, known, value, match)
        else:
            self.miss(match, f"`{pattern.name}` is another value here", value)

    def viewed(self, name: str, known: Op, value: Op, match: Match) -> Iterator[Match]:
        """A captured value again, behind steps that change neither its shape nor its dtype."""
        steps: list[Op] = []
        inner: Any = value
        while inner is not known and isinstance(inner, Op) and inner.name == "view":
            steps.append(inner)
            inner = inner.inputs[0]
        if inner is not known:
            self.miss(match, f"`{name}` is another value here", value)
        elif all(step.attrs.get("same") for step in steps):
            yield match.take(*steps, steps=0)
        else:
            self.miss(match, f"`{name}` is reshaped in between", value, sure=True)

    def operation(self, pattern: Pattern, op: Op, match: Match) -> Iterator[Match]:
        if isinstance(pattern, OpPattern):
            yield from self.plain(pattern, op, match)
        elif isinstance(pattern, ModulePattern):
            yield from self.module(pattern, op, match)
        elif isinstance(pattern, ChoicePattern):
            names = self.rule.choices[pattern.name]
            if op.name not in names:
                self.miss(match, f"expected one of {', '.join(names)}", op)
                return
            bound = match.take(op).bind(pattern.name, op.name)
            yield from self.operands(pattern.inputs, op.inputs, bound)
        elif isinstance(pattern, Either):
            for option in pattern.options:
                yield from self.operation(option, op, _without(match, pattern.absent(option)))
        elif isinstance(pattern, Maybe):
            yield from self.operation(pattern.whole, op, match)
            yield from self.operation(pattern.rest, op, _without(match, pattern.absent))
        elif isinstance(pattern, Like):
            for found in self.cast(op, pattern.value, match):
                model = found.values.get(pattern.model)
                if isinstance(model, Op) and model.dtype == op.dtype:
                    yield found
                else:
                    self.misrounds(found, f"cast is not to the dtype of `{pattern.model}`", op)

    def cast(self, op: Op, inner: Pattern, match: Match) -> Iterator[Match]:
        if op.name != "cast":
            self.misrounds(match, "expected a cast", op)
            return
        yield from self.at(inner, op.inputs[0], match.take(op))

    def plain(self, pattern: OpPattern, op: Op, match: Match) -> Iterator[Match]:
        if pattern.name == "attention":
            yield from self.attention(pattern, op, match)
            return
        if pattern.name == "fp32":
            if op.dtype is torch.float32:
                yield from self.cast(op, pattern.inputs[0], match)
            else:
                self.misrounds(match, "expected a cast to float32", op)
            return
        if pattern.name in DERIVED:
            found = DERIVED[pattern.name](op)
            if found is None:
                self.lacks(pattern, match, op)
            else:
                yield from self.operands(pattern.inputs, found, match.take(op))
            return
        if op.name != pattern.name:
            self.lacks(pattern, match, op)
            return
        for key, wanted in pattern.attrs:
            if op.attrs.get(key) != wanted:
                self.miss(match, f"expected {key}={wanted}, found {op.attrs.get(key)}", op)
                return
        if spreads_both(op):
            self.miss(match, "its operands are spread over each other", op)
            return
        taken = match.take(op)
        yield from self.operands(pattern.inputs, op.inputs, taken)
        if pattern.name in COMMUTATIVE:
            yield from self.operands(pattern.inputs, op.inputs[::-1], taken)

    def attention(self, pattern: OpPattern, op: Op, match: Match) -> Iterator[Match]:
        found = attention_operands(op)
        if found is None:
            self.miss(match, "expected an attention", op)
            return
        yield from self.operands(pattern.inputs, found, match.take(op))

    def operands(self, patterns: Any, values: Any, match: Match) -> Iterator[Match]:
        if len(values) < len(patterns) or any(v is not None for v in values[len(patterns) :]):
            return
        if not patterns:
            yield match
            return
        for found in self.at(patterns[0], values[0], match):
            yield from self.operands(patterns[1:], values[1:], found)

    def module(self, pattern: ModulePattern, op: Op, match: Match) -> Iterator[Match]:
        ref = self.reference(pattern.name, op)
        if ref is None or op.attrs.get("kwargs"):
            if match.steps:  # else it is never told
                kind = self.rule.kind_of(pattern.name)
                self.miss(match, f"`{pattern.name}` must be a {kind} module", op)
            return
        known = match.values.get(pattern.name)
        if known is not None and known.op is not op:
            self.miss(match, f"`{pattern.name}` is another module here", op)
            return
        taken = {r.path for r in match.values.values() if isinstance(r, ModuleRef)}
        if known is None and op.target in taken:
            self.miss(match, f"{op.target} cannot serve twice", op)
            return
        bound = match.take(op).bind(pattern.name, ref)
        yield from self.operands(pattern.inputs, op.inputs, bound)

    def reference(self, name: str, op: Op) -> ModuleRef | RoleRef | None:
        """What the child module is, if it is of the kind or has the role that `name` asks for."""
        if op.name != "module" or op.trace is None:
            return None
        kind = self.rule.kind_of(name)
        if kind == "linear":
            facts = linear_of(op.trace)
            return ModuleRef(str(op.target), facts, op) if facts is not None else None
        found = self.roles.of(op.trace, kind)
        return RoleRef(str(op.target), *found, op) if found is not None else None

    def past(self, pattern: Past, value: Any, match: Match) -> Iterator[Match]:
        if no_linear_between(value, match.values.get(pattern.name)):
            yield match.take(steps=1)
        else:
            self.miss(
                match, f"is not computed from `{pattern.name}`, or by way of a product", value
            )

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


def _without(match: Match, absent: tuple[str, ...]) -> Match:
    """The match without a part: what that alone would bind is None."""
    for name in absent:
        if name not in match.values:
            match = match.bind(name, None)
    return match


def _describe(pattern: Pattern) -> str:
    if isinstance(pattern, OpPattern | ModulePattern | ChoicePattern):
        return f"`{pattern.name}`"
    return "a cast" if isinstance(pattern, Like) else "a value"
