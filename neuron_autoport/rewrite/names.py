"""Names in a function's source: who reads one, who binds one, and which statements became dead."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import libcst as cst

from neuron_autoport.rewrite.nodes import Kinds, children
from neuron_autoport.rewrite.source import Edits, ForwardSource

# What binds a name, or calls a method that may write to its value.
BINDERS: Kinds = frozenset(
    {
        cst.Assign,
        cst.AnnAssign,
        cst.AugAssign,
        cst.NamedExpr,
        cst.For,
        cst.Del,
        cst.AsName,
        cst.Call,
    }
)


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it, in the order of the text."""
    todo = [node]
    while todo:
        current = todo.pop()
        yield current
        todo += reversed(children(current))


@functools.lru_cache(maxsize=1 << 10)
def names_in(node: cst.CSTNode) -> frozenset[str]:
    """All that is written as a plain name there."""
    return frozenset(n.value for n in walk(node) if isinstance(n, cst.Name))


@functools.lru_cache(maxsize=1 << 13)
def bound_names(statement: cst.CSTNode) -> frozenset[str]:
    """Names a statement binds: assignments of all kinds, loops, with, walrus, del.

    Writing into a value counts: `x[0] = y`, and calls of methods such as `x.mul_(y)`.
    """
    found: set[str] = set()
    for node in walk(statement):
        targets: list[cst.CSTNode] = []
        if isinstance(node, cst.Assign):
            targets = [t.target for t in node.targets]
        elif isinstance(
            node,
            cst.AnnAssign | cst.AugAssign | cst.NamedExpr | cst.For | cst.CompFor | cst.Del,
        ):
            targets = [node.target]
        elif isinstance(node, cst.AsName):
            targets = [node.name]
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            method = node.func.attr.value
            if method.endswith("_") and not method.endswith("__"):
                targets = [node.func.value]
        for target in targets:
            found |= names_in(target)
    return frozenset(found)


def read_names(node: cst.CSTNode, source: ForwardSource) -> set[str]:
    """Plain names an expression or statement reads (attribute names and call keywords are none)."""
    found = set()
    for child in walk(node):
        if not isinstance(child, cst.Name):
            continue
        parent = source.parents.get(child)
        if isinstance(parent, cst.Attribute) and parent.attr is child:
            continue
        if isinstance(parent, cst.Arg) and parent.keyword is child:
            continue
        if isinstance(parent, cst.AssignTarget | cst.Param | cst.FunctionDef):
            continue
        found.add(child.value)
    return found


def drop_dead(source: ForwardSource, edits: Edits) -> None:
    """Remove plain assignments that lost their last reader through `edits`; changes `edits`."""
    pure = [(line, name) for line in source.lines if (name := _pure_assignment(line)) is not None]
    if not pure:
        return
    read = read_names(source.function.body, source)
    while True:
        gone = edits.removed | set(edits.replaced)
        inserted = " ".join(t for texts in edits.inserted.values() for t in texts)
        text = inserted + " ".join(edits.replaced.values())
        readers = _reads_left(source, gone) | words(text)
        dead = [
            line
            for line, name in pure
            if line not in edits.removed
            and name not in readers
            and name in read
            and not any(n in edits.replaced for n in walk(line))  # it says now what must not be
        ]
        if not dead:
            return
        edits.removed |= set(dead)


def parameter_text(path: str) -> str:
    """Source text for a parameter by its dotted path: `scales.0` is `self.scales[0]`."""
    parts = path.split(".")
    return "self" + "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts)


def words(text: str) -> set[str]:
    """All names in a piece of source text."""
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _reads_left(source: ForwardSource, gone: set[cst.CSTNode]) -> set[str]:
    found: set[str] = set()

    def visit(node: cst.CSTNode) -> None:
        if node in gone:
            return
        if isinstance(node, cst.Name):
            found.update(read_names_of(node))
            return
        for child in children(node):
            visit(child)

    def read_names_of(node: cst.Name) -> set[str]:
        parent = source.parents.get(node)
        if isinstance(parent, cst.AssignTarget):
            return set()
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            return set()
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            return set()
        return {node.value}

    visit(source.function.body)
    return found


def _acts(node: cst.CSTNode) -> bool:
    """Is it a call, but for those that ask a tensor for its sizes?"""
    if not isinstance(node, cst.Call):
        return False
    return not isinstance(node.func, cst.Attribute) or node.func.attr.value not in ("size", "dim")


@functools.lru_cache(maxsize=1 << 12)
def _pure_assignment(line: cst.SimpleStatementLine) -> str | None:
    """The name of `name = expression` where the expression only reads names and attributes."""
    if len(line.body) != 1 or not isinstance(line.body[0], cst.Assign):
        return None
    assign = line.body[0]
    if len(assign.targets) != 1 or not isinstance(assign.targets[0].target, cst.Name):
        return None
    effects = (cst.Await, cst.Yield, cst.NamedExpr, cst.Lambda)
    if any(isinstance(n, effects) or _acts(n) for n in walk(assign.value)):
        return None
    return assign.targets[0].target.value
