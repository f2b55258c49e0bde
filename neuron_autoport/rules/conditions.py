"""What conditions (`require`, `neuron`) may ask of a match, and whether they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from neuron_autoport.rules.expressions import ExpressionError, evaluate
from neuron_autoport.rules.match import Match, ModuleRef, RoleRef
from neuron_autoport.rules.passed import NotPlain, passed
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.ops import Op

Conditions = Iterable[tuple[str, ast.Expression]]


@dataclass(frozen=True)
class TensorFacts:
    """What conditions may ask of a value.

    rows: its shape without the last dimension. linears: how many linear modules read it.
    """

    shape: tuple[int, ...]
    ndim: int
    dtype: str
    linears: int = 0

    @property
    def rows(self) -> tuple[int, ...]:
        return self.shape[:-1]


def facts_of(match: Match) -> dict[str, Any]:
    """The captures of a match as conditions see them."""
    return {name: _fact(value) for name, value in match.values.items()}


def _fact(value: Any) -> Any:
    if isinstance(value, Op):
        return TensorFacts(value.shape, len(value.shape), str(value.dtype), _linears(value))
    if isinstance(value, RoleRef):
        return SimpleNamespace(**facts_of(value.match), **_passed_facts(value))
    return value.facts if isinstance(value, ModuleRef) else value


def _passed_facts(ref: RoleRef) -> dict[str, Any]:
    """What its rule passes to its function, by parameter name; a name that it captures is left out."""
    try:
        values = passed(ref)
    except NotPlain:
        return {}
    return {n: _fact(v) for n, v in values.items() if n not in ref.match.values}


def _linears(value: Op) -> int:
    called = [u for u in value.users if u.name == "module" and u.trace is not None]
    return sum(linear_of(u.trace) is not None for u in called)


def broken(conditions: Conditions, match: Match) -> str | None:
    """Why one of the conditions does not hold; None if all do."""
    names = facts_of(match)
    for text, tree in conditions:
        try:
            holds = evaluate(tree, names)
        except ExpressionError as error:
            return f"`{text}`: {error}"
        if not holds:
            return f"`{text}` does not hold"
    return None
