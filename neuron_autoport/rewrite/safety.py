"""What the trace cannot tell and the source text must: is a rewrite safe on paths that did not run?

A trace sees one run. The source keeps its other branches, so the text is asked too: does code that stays
still read a name that went, may a name be bound again in between, does a part run only sometimes, does
a helper function give back the matched value itself?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import libcst as cst

from neuron_autoport.rewrite.names import BINDERS, bound_names, walk
from neuron_autoport.rewrite.nodes import Kinds, children
from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rewrite.source import Edits, ForwardSource
from neuron_autoport.rewrite.straight import returned_place
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.spans import Span

# Expressions whose parts run only sometimes, or more than once.
_SOMETIMES = (
    cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.ListComp, cst.SetComp, cst.DictComp,
    cst.GeneratorExp,
)  # fmt: skip
_MEMBERS: Kinds = frozenset({cst.Attribute, cst.Subscript})


def check_conditional(
    source: ForwardSource, interior: Iterable[Op], expressions: list[cst.BaseExpression]
) -> None:
    """Refuse (AP205) if an inner value is computed under a condition that its result is not under."""
    above = [_sometimes_above(source, e) for e in expressions]
    common = set.intersection(*above)
    if common and len(set(expressions)) > 1:
        raise Refused("AP205", "the results are computed inside a conditional expression")
    for op in interior:
        expression = source.expression_at(op.spans[0]) if op.spans else None
        if expression is not None and _sometimes_above(source, expression) - common:
            raise Refused("AP205", f"{op.label} is computed only sometimes", op.spans[0])


def _is_settled(node: cst.CSTNode) -> bool:
    from neuron_autoport.rewrite.branches import is_settled  # the two call each other

    return isinstance(node, cst.IfExp) and is_settled(node.test)


def _sometimes_above(source: ForwardSource, node: cst.CSTNode) -> set[cst.CSTNode]:
    found: set[cst.CSTNode] = set()
    current = source.parents.get(node)
    while current is not None and not isinstance(current, cst.BaseSmallStatement):
        if isinstance(current, _SOMETIMES) and not _is_settled(current):
            found.add(current)
        current = source.parents.get(current)
    return found


def check_helpers(
    source: ForwardSource, interior: Iterable[Op], outputs: Iterable[Op], together: bool
) -> None:
    """Refuse (AP208) what helper functions may do beside the match.

    The call in forward is replaced as a whole. So a helper must run straight through, or a branch that
    did not run would be lost; and one that computes a result must return just that.

    Args:
        together: do the outputs come from one expression, which gives just them?
    """
    outputs = set() if together else set(outputs)
    for op in interior:
        for span in op.spans[1:]:
            helper = returned_place(span, source.owner, source.reads)
            if helper is None:
                raise Refused("AP208", f"{span.function} does more than compute {op.label}", span)
            if op in outputs and helper != (span.line, span.column, span.end_line, span.end_column):
                raise Refused("AP208", f"{op.label} is not what {span.function} returns", span)


def check_binding(
    source: ForwardSource,
    name: str,
    begin: cst.CSTNode | None,
    end: cst.CSTNode,
    edits: Edits,
    *,
    bound: bool = False,
) -> None:
    """Refuse (AP209) if code that stays binds `name`, or writes to it, between two statements.

    Args:
        begin: where the name was read; None for the start of the function. end: where it is read now.
        bound: is `begin` what binds it? Then it is read from there on.
    """
    place = source.range(begin) if begin is not None else (0, 0, 0, 0)
    low = place[2:] if bound else place[:2]
    low, high = sorted((low, source.range(end)[:2]))
    for node in source.nodes(BINDERS):
        if not low <= source.range(node)[:2] < high:
            continue
        if name in bound_names(node) and source.statement_of(node) not in edits.removed:
            raise Refused("AP209", f"`{name}` is bound again or written in between")


def check_left_names(
    source: ForwardSource, edits: Edits, lines: set[cst.CSTNode], at: cst.CSTNode
) -> None:
    """Refuse if a name of a removed statement is still read (AP201) or bound in between (AP209).

    Args:
        lines: removed for the values they held. at: the statement the new call stands in.
    """
    gone = edits.removed | set(edits.replaced)
    parts = list(_parts(source.function.body, gone))
    reads = {part: _reads(source, part, gone) for part in parts}
    for line in sorted(lines, key=source.range):
        for name in sorted(bound_names(line)):  # the first that fails is told
            _check_left_name(source, name, line, at, reads, gone)


def _check_left_name(
    source: ForwardSource,
    name: str,
    line: cst.CSTNode,
    at: cst.CSTNode,
    reads: dict[cst.CSTNode, set[str]],
    gone: set[cst.CSTNode],
) -> None:
    after, new = source.range(line)[:2], source.range(at)[:2]
    for part, names in reads.items():
        place = source.range(part)[:2]
        if place <= after or part in gone:
            continue
        if name in names:
            raise Refused("AP201", f"`{name}` is also read by code that stays")
        if name in bound_names(part):
            if place < new:
                raise Refused("AP209", f"`{name}` is bound again by code that did not run")
            if source.block_of(part) is source.block_of(at):
                return


def _parts(body: cst.CSTNode, gone: set[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Simple statements, and the heads of compound ones, in the order of the text; not in `gone` blocks."""
    for statement in body.children:
        if statement in gone and not isinstance(statement, cst.SimpleStatementLine):
            continue
        if isinstance(statement, cst.SimpleStatementLine | cst.BaseSmallStatement):
            yield statement
        elif isinstance(statement, cst.BaseSuite | cst.BaseCompoundStatement | cst.Else | cst.Finally
                        | cst.ExceptHandler | cst.MatchCase):  # fmt: skip
            yield from _parts(statement, gone)
        elif isinstance(statement, cst.BaseExpression | cst.WithItem | cst.AsName):
            yield statement


def _reads(source: ForwardSource, node: cst.CSTNode, gone: set[cst.CSTNode]) -> set[str]:
    found = set()
    for child in _left(node, gone):
        if not isinstance(child, cst.Name):
            continue
        parent = source.parents.get(child)
        named = isinstance(parent, cst.Attribute) and parent.attr is child
        keyword = isinstance(parent, cst.Arg) and parent.keyword is child
        target = isinstance(parent, cst.AssignTarget) or _in_tuple_target(source, child)
        if not (named or keyword or target):
            found.add(child.value)
    return found


def _in_tuple_target(source: ForwardSource, node: cst.CSTNode) -> bool:
    parent = source.parents.get(node)
    while isinstance(parent, cst.Tuple | cst.List | cst.Element | cst.StarredElement):
        parent = source.parents.get(parent)
    return isinstance(parent, cst.AssignTarget)


def check_modules(source: ForwardSource, edits: Edits, paths: set[str], others: list[Op]) -> None:
    """Refuse (AP203) if code that stays uses a module whose weights moved.

    Args:
        paths: of those modules. others: operations that stay.
    """
    for op in others:
        own = op.target in paths if op.name == "module" else False
        if own or (op.name == "param" and any(f"{op.target}".startswith(f"{p}.") for p in paths)):
            raise Refused("AP203", f"{op.target} is used again", op.spans[0] if op.spans else None)
    gone = edits.removed | set(edits.replaced)
    for node in naming(source, paths, gone):
        raise Refused("AP203", f"{source.code(node)} is named by code that stays")


def naming(source: ForwardSource, paths: set[str], gone: set[cst.CSTNode]) -> list[cst.CSTNode]:
    """Expressions of the function that name one of these modules, but those in `gone`; in the order of the text."""
    found = [n for n in source.nodes(_MEMBERS) if module_path(source, n) in paths]
    found = [n for n in found if _stays(source, n, gone)]
    return sorted(found, key=lambda n: (source.range(n)[:2], [-p for p in source.range(n)[2:]]))


def _stays(source: ForwardSource, node: cst.CSTNode, gone: set[cst.CSTNode]) -> bool:
    """Is it in the function, and neither it nor what holds it in `gone`?"""
    current: cst.CSTNode | None = node
    while current is not None and current not in gone and current is not source.function:
        current = source.parents.get(current)
    return current is source.function and current not in gone


def module_path(source: ForwardSource, node: cst.CSTNode) -> str:
    """`self.experts[0].up` as the module path `experts.0.up`."""
    text = source.code(node).removeprefix("self.")
    return text.replace("[", ".").replace("]", "").replace("'", "").replace('"', "")


def check_expression(source: ForwardSource, expression: cst.CSTNode, span: Span) -> None:
    """Refuse what cannot be replaced as a whole: the target of `+=`, and `:=` or `await` inside."""
    if isinstance(source.parents.get(expression), cst.AugAssign):
        raise Refused("AP208", "an augmented assignment", span)
    for node in walk(expression):
        if isinstance(node, cst.NamedExpr | cst.Await | cst.Yield):
            raise Refused("AP202", f"it also contains `{source.code(node)}`", span)


@lru_cache(maxsize=1 << 12)
def droppable(line: cst.SimpleStatementLine) -> bool:
    """May the statement go with its value? Only a lone assignment to plain names."""
    if len(line.body) != 1:
        return False
    statement = line.body[0]
    if isinstance(statement, cst.AnnAssign):
        return isinstance(statement.target, cst.Name)
    if not isinstance(statement, cst.Assign):
        return False
    parts = [n for t in statement.targets for n in walk(t.target)]
    return not any(isinstance(n, cst.Attribute | cst.Subscript) for n in parts)


def _left(node: cst.CSTNode, gone: set[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """`node` and all below it but what is in `gone`."""
    todo = [node]
    while todo:
        current = todo.pop()
        if current not in gone:
            yield current
            todo += reversed(children(current))
