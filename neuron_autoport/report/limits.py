"""Limits of a target's kernels that a site breaks, with the numbers and the ranks that mend it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.conditions import facts_of
from neuron_autoport.rules.expressions import ExpressionError, evaluate
from neuron_autoport.rules.load_code import TARGETS, scope_of

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


def broken_limits(site: Site, tp: int, target: str) -> tuple[BrokenLimit, ...]:
    """The limits of the site's rule that do not hold on `tp` ranks, as ordered in the rule file.

    Args:
        target: the chip; a limit for another one does not count. One for a phase counts, and says so.
    """
    facts = facts_of(site.match)
    found = []
    for text, tree in site.rule.neuron:
        if scope_of(text) in TARGETS and scope_of(text) != target:
            continue
        if not _holds(tree, facts | {"tp": tp}):
            ranks = [n for n in _RANKS if n > tp and _holds(tree, facts | {"tp": n})]
            found.append(
                BrokenLimit(text, _figures(tree, facts | {"tp": tp}), min(ranks, default=None))
            )
    return tuple(found)


def _holds(tree: ast.Expression, names: Mapping[str, Any]) -> bool:
    """A limit that cannot be worked out for these values does not hold."""
    try:
        return bool(evaluate(tree, names))
    except ExpressionError:
        return False


def _figures(tree: ast.Expression, names: Mapping[str, Any]) -> str:
    """`11008 > 4096` for a broken `width <= 4096`; empty for anything but one comparison of plain values."""
    body = tree.body
    if not isinstance(body, ast.Compare) or len(body.ops) != 1:
        return ""
    sign = _OPPOSITE.get(type(body.ops[0]))
    if sign is None:
        return ""
    try:
        left, right = evaluate(body.left, names), evaluate(body.comparators[0], names)
    except ExpressionError:
        return "cannot be worked out"
    plain = all(isinstance(side, int | float | str) for side in (left, right))
    return f"{left} {sign} {right}" if plain else ""
