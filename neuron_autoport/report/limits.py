"""Limits of a target's kernels that a site breaks, with the numbers and the ranks that mend it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_autoport.rewrite.plan import TensorFacts
from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.expressions import evaluate
from neuron_autoport.rules.match import ModuleRef
from neuron_autoport.trace.ops import Op

_RANKS = (1, 2, 4, 8, 16, 32, 64)
_OPPOSITE = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
}


@dataclass(frozen=True)
class BrokenLimit:
    """A limit that does not hold. figures: both sides as numbers, with the
    opposite sign; holds_from: the least ranks, if any."""

    text: str
    figures: str
    holds_from: int | None


def broken_limits(site: Site, tp: int) -> tuple[BrokenLimit, ...]:
    """The limits of the site's rule that do not hold on `tp` ranks, as ordered in the rule file."""
    facts = _facts(site)
    found = []
    for text, tree in site.rule.neuron:
        if not evaluate(tree, facts | {"tp": tp}):
            ranks = [n for n in _RANKS if n > tp and evaluate(tree, facts | {"tp": n})]
            found.append(
                BrokenLimit(text, _figures(tree, facts | {"tp": tp}), min(ranks, default=None))
            )
    return tuple(found)


def _facts(site: Site) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, value in site.match.values.items():
        if isinstance(value, Op):
            facts[name] = TensorFacts(value.shape, len(value.shape), str(value.dtype))
        else:
            facts[name] = value.facts if isinstance(value, ModuleRef) else value
    return facts


def _figures(tree: ast.Expression, names: Mapping[str, Any]) -> str:
    """`11008 > 4096` for a broken `width <= 4096`; empty for anything but one comparison."""
    body = tree.body
    if not isinstance(body, ast.Compare) or len(body.ops) != 1:
        return ""
    sign = _OPPOSITE.get(type(body.ops[0]))
    if sign is None:
        return ""
    left, right = evaluate(body.left, names), evaluate(body.comparators[0], names)
    return f"{left} {sign} {right}"
