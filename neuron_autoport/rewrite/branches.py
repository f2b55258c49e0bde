"""Branches of a forward: which are settled by attributes of the module, which were not taken.

A trace holds for all modules with the attribute values it read. So `if self.has_scale:` is no branch for a
rewrite, while `if mask is not None:` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import libcst as cst

from neuron_autoport.rewrite.names import bound_names, walk
from neuron_autoport.rewrite.nodes import Kinds
from neuron_autoport.rewrite.safety import module_path, naming
from neuron_autoport.rewrite.source import Edits, ForwardSource, inside
from neuron_autoport.rewrite.straight import value_of
from neuron_autoport.trace.ops import Op

_OPERATORS = (
    cst.Name, cst.Attribute, cst.Integer, cst.Float, cst.SimpleString, cst.Comparison,
    cst.ComparisonTarget, cst.BooleanOperation, cst.UnaryOperation, cst.BaseCompOp, cst.BaseBooleanOp,
    cst.BaseUnaryOp, cst.BaseParenthesizableWhitespace, cst.LeftParen, cst.RightParen, cst.Dot,
    cst.TrailingWhitespace, cst.Newline, cst.Comment, cst.EmptyLine,
)  # fmt: skip


_CHOICES: Kinds = frozenset({cst.If, cst.IfExp})


def common(blocks: list[cst.CSTNode | None], source: ForwardSource) -> cst.CSTNode:
    """The innermost block that holds all of these blocks."""
    chains = [_blocks_above(b, source) for b in blocks if b is not None]
    return next(b for b in chains[0] if all(b in chain for chain in chains))


def _blocks_above(block: cst.CSTNode, source: ForwardSource) -> list[cst.CSTNode]:
    found = [block]
    current = source.parents.get(block)
    while current is not None and current is not source.function:
        if isinstance(current, cst.BaseSuite):
            found.append(current)
        current = source.parents.get(current)
    return found


def always_runs(
    statement: cst.CSTNode,
    block: cst.CSTNode,
    source: ForwardSource,
    fails: Callable[[cst.BaseExpression], bool] = lambda _: False,
) -> bool:
    """Does the statement run whenever `block` does, for every module the trace holds for?

    Args:
        fails: tells of a condition that it is false wherever the rewritten forward goes on.
    """
    current = source.block_of(statement)
    while current is not block and current is not None:
        owner = source.parents.get(current)
        other = isinstance(owner, cst.Else)
        branch = source.parents.get(owner) if owner is not None and other else owner
        if not isinstance(branch, cst.If):
            return False
        if not is_settled(branch.test) and not (other and fails(branch.test)):
            return False
        current = source.block_of(branch)
        while isinstance(current, cst.If):  # an `elif` hangs from its `if`
            if not is_settled(current.test):
                return False
            current = source.block_of(current)
    return current is block


@lru_cache(maxsize=1 << 12)
def is_settled(test: cst.BaseExpression) -> bool:
    """Does the condition read attributes of `self` and constants alone, and call nothing?"""
    names = [n for n in walk(test) if isinstance(n, cst.Name)]
    attributes = [n for n in walk(test) if isinstance(n, cst.Attribute)]
    plain = {n.attr for n in attributes} | {a.value for a in attributes}
    own = any(n.value == "self" for n in names)
    known = all(n.value in ("self", "None", "True", "False") or n in plain for n in names)
    roots = [a for a in attributes if not isinstance(a.value, cst.Attribute)]
    from_self = all(isinstance(a.value, cst.Name) and a.value.value == "self" for a in roots)
    return own and known and from_self and all(isinstance(n, _OPERATORS) for n in walk(test))


def settle(source: ForwardSource, edits: Edits, paths: set[str]) -> None:
    """Keep only the branch that runs where the other reads what is gone. Changes `edits`.

    Args:
        paths: of modules that go.
    """
    names = {n for line in edits.removed for n in bound_names(line)}
    for node in source.nodes(_CHOICES):
        if not isinstance(node, cst.If | cst.IfExp) or not is_settled(node.test):
            continue
        value = value_of(source.code(node.test), source.reads)
        if value is None:
            continue
        dead = [d for d in (node.test, node.orelse if value else node.body) if d is not None]
        inside = [n for d in dead for n in walk(d)]
        reads = {n.value for n in inside if isinstance(n, cst.Name)}
        named = {module_path(source, n) for n in inside if isinstance(n, cst.Attribute)}
        if reads & names or named & paths:
            edits.settled[node] = value
            edits.removed |= set(dead)


def statement_in(statement: cst.CSTNode, block: cst.CSTNode, source: ForwardSource) -> cst.CSTNode:
    """The statement of `block` that is, or holds, this one."""
    current = statement
    while source.parents.get(current) is not block:
        parent = source.parents.get(current)
        assert parent is not None
        current = parent
    return current


def close_untaken(source: ForwardSource, edits: Edits, paths: set[str], ops: Iterable[Op]) -> None:
    """Let branches that the trace did not take say so where they name a module that went.

    `self.kv(x)` in a branch for cross-attention becomes `NF.moved("self.kv")(x)`, which raises. Changes `edits`.
    """
    gone = edits.removed | set(edits.replaced)
    taken = [place for _, place in source.placed(ops)]
    for node in naming(source, paths, gone):
        if not isinstance(node, cst.Attribute) or _is_target(source, node):
            continue  # to bind it again is a use that stays: `check_modules` refuses it
        block = source.block_of(source.statement_of(node) or node)
        branch = source.parents.get(block) if block is not None else None
        if block is None or not isinstance(branch, cst.If | cst.Else):
            continue
        if not any(inside(place, source.range(block)) for place in taken):
            edits.replaced[node] = f'NF.moved("{source.code(node)}")'


def _is_target(source: ForwardSource, node: cst.CSTNode) -> bool:
    """Is it bound, or taken away, there?"""
    parent = source.parents.get(node)
    while isinstance(parent, cst.Tuple | cst.List | cst.Element | cst.StarredElement):
        node, parent = parent, source.parents.get(parent)
    if isinstance(parent, cst.AugAssign | cst.AnnAssign | cst.For):
        return parent.target is node
    return isinstance(parent, cst.AssignTarget | cst.Del | cst.AsName)
