"""Roles: a module that one rule matches as a whole may be a capture of another rule.

`where: {norm: rms_norm}` asks for a child whose whole forward is a match of a rule with the role `rms_norm`. This is
how a rule crosses the border of modules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from neuron_autoport.rules.conditions import broken
from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.ops import OpGraph

if TYPE_CHECKING:
    from neuron_autoport.rules.match import Match
    from neuron_autoport.rules.rule import Rule
    from neuron_autoport.trace.module_trace import ModuleTrace


class Roles:
    """Answers which rule gives a traced module a role; every answer is kept.

    Args:
        rules: of the library. Their roles must not ask for each other in a circle.
        without: `Class:rule` pairs that failed their proof: such a module has no role by that rule.
    """

    def __init__(self, rules: Iterable[Rule], without: Collection[str] = ()) -> None:
        self.without = without
        self.by_role: dict[str, list[Rule]] = {}
        for rule in rules:
            if not rule.weights and not rule.refuse and len(rule.outputs) == 1:
                self.by_role.setdefault(rule.role, []).append(rule)
        self.known: dict[tuple[ModuleTrace, str], tuple[Rule, Match] | None] = {}

    def of(self, trace: ModuleTrace, role: str) -> tuple[Rule, Match] | None:
        """The rule with this role that matches all of the forward, and its match."""
        if (trace, role) not in self.known:
            self.known[trace, role] = self._find(trace, role)
        return self.known[trace, role]

    def _find(self, trace: ModuleTrace, role: str) -> tuple[Rule, Match] | None:
        from neuron_autoport.rules.matcher import find  # the two call each other

        if trace.end is not None:
            return None
        graph = canonical_graph(trace)
        for rule in self.by_role.get(role, ()):
            if f"{trace.module_class.__name__}:{rule.name}" in self.without:
                continue
            for match in find(rule, graph, self).matches:
                if _is_whole(rule, match, graph) and broken(rule.require, match) is None:
                    return rule, match
        return None


def _is_whole(rule: Rule, match: Match, graph: OpGraph) -> bool:
    """Is the match's result what the module returns, and is there nothing else in it?"""
    if list(graph.outputs) != [match.values[rule.outputs[0]]] or len(graph.inputs()) != 1:
        return False
    if any(op.written for op in graph.ops):
        return False  # it changes what it is given
    inside = set(match.interior)
    inside |= {op for whole in graph.ops for op in whole.absorbed}
    return all(op in inside or op.name in ("input", "param") for op in graph.ops)


NO_ROLES = Roles(())
