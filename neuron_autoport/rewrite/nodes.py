"""Nodes of a syntax tree: what is below each, and all of one kind. A tree does not change: each is found once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import libcst as cst

Kinds = frozenset[type[cst.CSTNode]]


@lru_cache(maxsize=1 << 16)
def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """The nodes right below, in the order of the text; libcst finds them by visiting."""
    return tuple(node.children)


def parents_in(tree: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """For each node of a tree the one it hangs from."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    todo = [tree]
    while todo:
        node = todo.pop()
        below = children(node)
        found.update(dict.fromkeys(below, node))
        todo += below
    return found


class NodesByKind:
    """Nodes of one tree in a fixed order, those of some kinds at a time.

    Kinds are the classes of the nodes themselves, not what these derive from.
    """

    def __init__(self, order: Iterable[cst.CSTNode]) -> None:
        self.order = tuple(order)
        self._found: dict[Kinds, tuple[cst.CSTNode, ...]] = {}

    def of(self, kinds: Kinds) -> tuple[cst.CSTNode, ...]:
        if kinds not in self._found:
            self._found[kinds] = tuple(n for n in self.order if type(n) in kinds)
        return self._found[kinds]
