"""What computes the same as a rule's pattern but rounds elsewhere: all operations are there, the casts are not.

A search stops at the first cast that is missing, which may be the first step of the pattern. So that such a place
is not passed over in silence, it is looked for once more by its operations alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from neuron_autoport.rules.conditions import broken
from neuron_autoport.rules.match import Match, NearMiss
from neuron_autoport.rules.matcher import find, stop_at_rounding
from neuron_autoport.rules.pattern import (
    ChoicePattern,
    Either,
    Like,
    Maybe,
    ModulePattern,
    OpPattern,
    Pattern,
    Statement,
)
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.ops import Op, OpGraph


def otherwise_rounded(
    rules: Iterable[Rule], graph: OpGraph, roles: Roles, known: set[Op]
) -> Iterator[tuple[Rule, NearMiss]]:
    """For each place that a rule would match but for the dtypes, the nearest such rule and where it stops.

    What a near miss has `passed` is then all of the place.

    Args:
        rules: to look for. known: operations that something is said of already.
    """
    found = [
        (rule, match)
        for rule in rules
        if (loose := _loosened(rule)) is not None and _may_hold(loose, graph)
        for match in find(loose, graph, roles).matches
        if known.isdisjoint(match.interior) and broken(rule.require, match) is None
    ]
    told = [(rule, match, _stop(rule, match, graph, roles)) for rule, match in found]
    told.sort(key=lambda t: (-len(t[1].interior), -t[2].done, t[0].name))
    taken: set[Op] = set()
    for rule, match, miss in told:
        if taken.isdisjoint(match.interior):
            taken |= set(match.interior)
            yield rule, replace(miss, passed=frozenset(match.interior))


def _stop(rule: Rule, match: Match, graph: OpGraph, roles: Roles) -> NearMiss:
    """How far the rule as written gets at this place."""
    inner = set(match.interior)
    around = {cast for op in inner for cast in op.users if cast.name == "cast"}
    around |= {value for op in inner for value in op.operands()}
    part = OpGraph(tuple(sorted(inner | around, key=lambda op: op.index)), graph.outputs)
    miss = stop_at_rounding(rule, part, roles)
    last = match.values[rule.outputs[0]]
    miss = miss or NearMiss(0, rule.steps, "expected a cast", last)
    return replace(
        miss, reason=f"its operations are all there, but not its rounding: {miss.reason}"
    )


def _loosened(rule: Rule) -> Rule | None:
    """The rule without its casts; None if it has none, or is to be left out."""
    if not rule.sees_casts or rule.refuse:
        return None
    if "loosened" not in rule.__dict__:  # kept with the rule, as its cached properties are
        kinds = {n: "value" if k == "float32" else k for n, k in rule.kinds.items()}
        match, given = (tuple(map(_bare, part)) for part in (rule.match, rule.given))
        made = replace(rule, match=match, given=given, kinds=kinds)
        rule.__dict__["loosened"] = made
    return rule.__dict__["loosened"]


def _bare(statement: Statement) -> Statement:
    return replace(statement, pattern=_without_casts(statement.pattern))


def _without_casts(pattern: Pattern) -> Pattern:
    if isinstance(pattern, Like):
        return _without_casts(pattern.value)
    if isinstance(pattern, OpPattern) and pattern.name == "fp32":
        return _without_casts(pattern.inputs[0])
    if isinstance(pattern, OpPattern | ModulePattern | ChoicePattern):
        return replace(pattern, inputs=tuple(map(_without_casts, pattern.inputs)))
    if isinstance(pattern, Either):
        return Either(tuple(map(_without_casts, pattern.options)))
    if isinstance(pattern, Maybe):
        return Maybe(_without_casts(pattern.whole), _without_casts(pattern.rest))
    return pattern


def _may_hold(rule: Rule, graph: OpGraph) -> bool:
    """Is there a root for each equation?"""
    return all(not graph.by_name.keys().isdisjoint(roots) for roots in rule.roots)
