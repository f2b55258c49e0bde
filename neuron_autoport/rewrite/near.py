"""What nearly matched, and what looks like a known computation but is none: refusals with the code AP210.

Told is how far a rule got where it got far. Beside, no operation that only known computations have (`ANCHORS`) is
left without a word: of each the nearest rule is told, however few of its steps are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuron_autoport.rewrite.reasons import Refusal
from neuron_autoport.rules.match import SHORT, NearMiss
from neuron_autoport.rules.matcher import find
from neuron_autoport.rules.pattern import ModulePattern, Var
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.roots import RulesByRoot
from neuron_autoport.rules.rounding import otherwise_rounded
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.ops import Op, OpGraph

# Norms and rotations: one of these is seldom anything else.
ANCHORS = frozenset({"rsqrt", "rms_norm", "layer_norm", "rotate_half", "rotate_pairs"})
# Operations from an anchor to the end of what it is a part of.
_FAR = 6


@dataclass(frozen=True, eq=False)
class Near:
    """A rule and the attempt of it that got furthest."""

    rule: Rule
    miss: NearMiss

    @property
    def refusal(self) -> Refusal:
        op, steps = self.miss.op, f"{self.miss.done} of {self.miss.total}"
        span = op.spans[0] if op is not None and op.spans else None
        return Refusal("AP210", self.rule.name, self.miss.reason, span, steps)

    def covered(self, claimed: set[Op], graph: OpGraph, named: set[str]) -> bool:
        """Is it of no interest: another rule of its role took the place, or its op is claimed?"""
        if self.rule.role in named and not self.miss.sure:
            return True
        span = self.refusal.span
        return any(op.spans[:1] == (span,) and op in claimed for op in graph.ops)


def tells(rule: Rule, miss: NearMiss) -> bool:
    """Did it get so far that it is worth a word?"""
    if miss.sure:
        return True
    if not miss.far:
        return False
    # Is half of the pattern a sign of anything? Linear maps alone are found everywhere.
    patterns = [s.pattern for s in (*rule.match, *rule.given)]
    calls = [p for p in patterns if isinstance(p, ModulePattern)]
    plain = len(calls) == len(patterns) and all(isinstance(v, Var) for p in calls for v in p.inputs)
    return not plain


def unsaid(library: RulesByRoot, graph: OpGraph, roles: Roles, said: set[Op]) -> Iterator[Near]:
    """Of what would match but for its rounding, and of each anchor that is left, the nearest rule.

    Args:
        said: operations that something is known of; those that are told here are added.
    """
    inside = {op for whole in graph.ops for op in whole.absorbed}
    left = [op for op in graph.named(ANCHORS) if op not in said and op not in inside]
    if not left:
        return
    names = {op.name for op in left}
    longer = [r for r in library.within(graph) if r.steps > SHORT and r.operations & names]
    for rule, miss in otherwise_rounded(longer, graph, roles, said):
        said |= miss.passed
        yield Near(rule, miss)
    for anchor in left:
        near = _nearest(library, anchor, roles) if anchor not in said else None
        if near is not None:
            said |= near.miss.passed | {anchor}
            yield near


def _nearest(library: RulesByRoot, anchor: Op, roles: Roles) -> Near | None:
    """The rule with such an operation that gets furthest with it, else that gets furthest near it."""
    part = OpGraph(_behind(anchor), ())
    best: Near | None = None
    for rule in library.within(part):
        miss = find(rule, part, roles).near_miss if anchor.name in rule.operations else None
        if miss is None or rule.refuse:
            continue
        if best is None or _reach(miss, anchor) > _reach(best.miss, anchor):
            best = Near(rule, miss)
    return best


def _reach(miss: NearMiss, anchor: Op) -> tuple[bool, int, int]:
    """Of equally far ones the shortest rule is nearest."""
    return anchor in miss.passed, miss.done, -miss.total


def _behind(anchor: Op) -> tuple[Op, ...]:
    """The operation and those that are computed from it in a few steps, in the order they run."""
    found, edge = {anchor}, {anchor}
    for _ in range(_FAR):
        edge = {user for op in edge for user in op.users} - found
        found |= edge
    return tuple(sorted(found, key=lambda op: op.index))
