"""What a name holds where it is read, on every path through the source, those that the trace did not take too.

The trace shows that two reads gave one value in one run. In `k = other if other is not None else x` they
need not do so in another. Two reads mean the same if the same assignments reach both.
"""

from __future__ import annotations

from typing import TypeAlias

import libcst as cst

from neuron_autoport.rewrite import branches
from neuron_autoport.rewrite.names import BINDERS, bound_names
from neuron_autoport.rewrite.nodes import Kinds
from neuron_autoport.rewrite.source import ForwardSource, inside
from neuron_autoport.rewrite.straight import value_of

# A parameter by its name; what one statement binds a name to; several such, of which one has run; an expression.
Bound: TypeAlias = "str | tuple[cst.CSTNode, str]"
Meaning: TypeAlias = "Bound | frozenset[Bound] | cst.CSTNode"
_LOOPS: Kinds = frozenset({cst.For, cst.While})


def meaning(source: ForwardSource, expression: cst.BaseExpression) -> Meaning:
    """What an expression stands for: a name for what gave it its value, any other expression for itself."""
    if isinstance(expression, cst.IfExp):
        return _chosen(source, expression)
    if not isinstance(expression, cst.Name):
        return expression
    found = _reaching(source, expression)
    if len(found) > 1:
        return frozenset(found)
    (only,) = found
    value = None if isinstance(only, str) else _plain_value(*only)
    return meaning(source, value) if value is not None else only


def _chosen(source: ForwardSource, choice: cst.IfExp) -> Meaning:
    if branches.is_settled(choice.test):
        value = value_of(source.code(choice.test), source.reads)
        if value is not None:
            return meaning(source, choice.body if value else choice.orelse)
    both = {meaning(source, choice.body), meaning(source, choice.orelse)}
    return both.pop() if len(both) == 1 else choice


def _parameters(source: ForwardSource) -> dict[str, cst.Param]:
    params = source.function.params
    return {
        p.name.value: p for p in (*params.posonly_params, *params.params, *params.kwonly_params)
    }


def _binders(source: ForwardSource, name: str) -> list[cst.CSTNode]:
    """What binds the name or writes to its value, in the order of the text."""
    found = [n for n in source.nodes(BINDERS) if name in bound_names(n)]
    return sorted(found, key=lambda n: source.range(n)[:2])


def _reaching(source: ForwardSource, name: cst.Name) -> set[Bound]:
    """The assignments of which one gave the name its value; a parameter by its name."""
    place = source.range(name)
    found: set[Bound] = set()
    for binder in reversed(_binders(source, name.value)):
        own = source.range(binder)
        if own[:2] > place[:2]:
            if _in_one_loop(source, binder, name):
                found.add((binder, name.value))
            continue
        if inside(place, own) and not isinstance(binder, cst.For):
            continue  # it is read by what binds it
        block, other = _blocks(source, binder), _blocks(source, name)
        common = branches.common([block, other], source)
        if _excluded(source, binder, name, common):
            continue
        found.add((binder, name.value))
        statement = source.statement_of(binder)
        assert statement is not None
        if branches.always_runs(statement, common, source):
            return found
    return found | {name.value}


def _blocks(source: ForwardSource, node: cst.CSTNode) -> cst.CSTNode | None:
    statement = source.statement_of(node)
    return source.block_of(statement) if statement is not None else None


def _excluded(
    source: ForwardSource, binder: cst.CSTNode, name: cst.CSTNode, common: cst.CSTNode
) -> bool:
    """Are they in two branches of one `if`, or is the binder's one that never runs?"""
    statements = [source.statement_of(binder), source.statement_of(name)]
    first, second = (branches.statement_in(s, common, source) for s in statements if s is not None)
    if first is second and isinstance(first, cst.If) and statements[0] is not statements[1]:
        return True
    current = source.parents.get(binder)
    while current is not None and current is not common:
        above = source.parents.get(current)
        branch = source.parents.get(above) if isinstance(above, cst.Else) else above
        if isinstance(branch, cst.If) and branches.is_settled(branch.test):
            taken = value_of(source.code(branch.test), source.reads)
            if taken is not None and taken is not (current is branch.body):
                return True
        current = above
    return False


def _in_one_loop(source: ForwardSource, binder: cst.CSTNode, name: cst.CSTNode) -> bool:
    both = (source.range(binder), source.range(name))
    loops = (source.range(loop) for loop in source.nodes(_LOOPS))
    return any(all(inside(b, loop) for b in both) for loop in loops)


def _plain_value(binder: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """The name or choice of `name = other`, also among several; None if it is bound in another way."""
    if not isinstance(binder, cst.Assign):
        return None
    target, value = binder.targets[0].target, binder.value
    parts: list[tuple[cst.CSTNode, cst.CSTNode]] = [(t.target, value) for t in binder.targets]
    if len(parts) == 1 and isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        elements = (*target.elements, *value.elements)
        if any(isinstance(e, cst.StarredElement) for e in elements):
            return None
        both = zip(target.elements, value.elements, strict=False)
        parts = [(one.value, other.value) for one, other in both]
    own = [v for t, v in parts if isinstance(t, cst.Name) and t.value == name]
    return own[0] if len(own) == 1 and isinstance(own[0], cst.Name | cst.IfExp) else None


def stand_in(source: ForwardSource, choice: cst.IfExp, wanted: Meaning) -> cst.Name | None:
    """The parameter that stands in for the wanted value when it is given: `other if ... else x` gives `other`.

    None if the choice is another one.
    """
    arms = (choice.body, choice.orelse)
    for arm, rest in (arms, arms[::-1]):
        if not isinstance(arm, cst.Name) or meaning(source, rest) != wanted:
            continue
        parameter = _parameters(source).get(arm.value)
        default = parameter.default if parameter is not None else None
        if meaning(source, arm) == arm.value and isinstance(default, cst.Name):
            return arm if default.value == "None" else None
    return None


def is_false(source: ForwardSource, test: cst.BaseExpression, known: cst.BaseExpression) -> bool:
    """Does `test` fail whenever the name `known` is false? It is that name, or an `and` with it."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return is_false(source, test.left, known) or is_false(source, test.right, known)
    both = isinstance(test, cst.Name) and isinstance(known, cst.Name)
    same = both and source.code(test) == source.code(known)
    return same and meaning(source, test) == meaning(source, known)
