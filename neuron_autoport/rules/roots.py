"""Which operations a pattern can hold at, and which it cannot do without: a search need not try the others.

`y = down(act(gate(x)) * up(x))` can only hold at the call of a module, `a * b + c` only at a sum. It is the name of the
operation alone that is asked for; what it is applied to is seen when the pattern is tried there. And where a graph has
no `tanh`, `tanh(a * b) + c` gets no further than its sum, which is not worth a word: it need not be tried at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from neuron_autoport.rules.derived import WRITTEN_AS
from neuron_autoport.rules.match import is_far
from neuron_autoport.rules.pattern import (
    ChoicePattern,
    Either,
    Like,
    Maybe,
    ModulePattern,
    OpPattern,
    Pattern,
    Statement,
    Var,
    count_steps,
    is_step,
    parts,
)
from neuron_autoport.trace.attention_ops import RESULTS
from neuron_autoport.trace.ops import OpGraph

if TYPE_CHECKING:
    from neuron_autoport.rules.rule import Rule


def roots(pattern: Pattern, choices: Mapping[str, Mapping[str, str]]) -> frozenset[str]:
    """Names of the operations that `Values.operation` can find the pattern at.

    Args:
        choices: of the rule, by the name of the captured operation.
    """
    if isinstance(pattern, Either):
        return frozenset[str]().union(*(roots(p, choices) for p in pattern.options))
    if isinstance(pattern, Maybe):
        return roots(pattern.whole, choices) | roots(pattern.rest, choices)
    if isinstance(pattern, ModulePattern):
        return frozenset({"module"})
    if isinstance(pattern, ChoicePattern):
        return frozenset(choices[pattern.name])
    if isinstance(pattern, Like):
        return frozenset({"cast"})
    if isinstance(pattern, OpPattern):
        return _of_operation(pattern.name)
    return frozenset()  # a value of any kind is no operation to begin at


def _of_operation(name: str) -> frozenset[str]:
    if name == "attention":
        return RESULTS
    return frozenset({"cast" if name == "fp32" else WRITTEN_AS.get(name, name)})


def needs(
    statements: Iterable[Statement], choices: Mapping[str, Mapping[str, str]]
) -> frozenset[str]:
    """Names of operations without any of which a rule can neither match nor miss so nearly that it is told.

    A search takes the operations of a pattern in the order they are written in and stops at the first that is not
    there; so few are not far (`match.is_far`). It is asked no further than the first part that may be absent, and the
    first capture that stands again: views before that are a miss that is always told.

    Args:
        statements: the rule's equations in the order they are solved. choices: as of `roots`.
    """
    equations = list(statements)
    total = sum(count_steps(s.pattern) for s in equations)
    found, seen, done = set[str](), set[str](), 0
    for statement in equations:
        for part in _in_order(statement.pattern):
            again = isinstance(part, Var) and part.name in seen
            if again or isinstance(part, Either | Maybe) or is_far(done, total):
                return frozenset(found)
            if isinstance(part, Var):
                seen.add(part.name)
            names = roots(part, choices)
            found |= names if len(names) == 1 else frozenset()
            done += is_step(part)
        seen |= set(statement.targets)
    return frozenset(found)


def _in_order(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and all below it in the order a search takes them."""
    yield pattern
    for part in parts(pattern):
        yield from _in_order(part)


class RulesByRoot:
    """A library in which only those rules are looked up that can begin somewhere in a graph.

    Args:
        rules: in the order they are tried.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.role_of = {rule.name: rule.role for rule in reversed(self.rules)}
        self.numbers: dict[str, list[int]] = {}
        for number, rule in enumerate(self.rules):
            for root in rule.roots[0]:
                self.numbers.setdefault(root, []).append(number)

    def within(self, graph: OpGraph) -> list[Rule]:
        """The rules whose first equation has a root among the graph's operations, in their order."""
        found = {n for name in graph.by_name for n in self.numbers.get(name, ())}
        return [self.rules[n] for n in sorted(found)]

    def worth_trying(self, graph: OpGraph) -> list[Rule]:
        """Of these, the rules that can match or miss so nearly that it is told."""
        return [r for r in self.within(graph) if r.needs <= graph.by_name.keys()]
