"""Equations of a pattern that can never hold together, whatever the graph: told when the file is read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from neuron_autoport.rules.check_call import Fault


def check_equations(body: Iterable[ast.stmt]) -> Iterator[Fault]:
    """Faults of the equations of one field: a name with two of them, circles, and equations without an operation.

    What is no equation is left alone: that is told elsewhere.
    """
    known: dict[str, ast.Name] = {}
    reads: dict[str, set[str]] = {}
    for node in body:
        targets = _targets(node)
        if targets is None or not isinstance(node, ast.Assign):
            continue
        if isinstance(node.value, ast.Name):
            yield (
                f"`{node.value.id}` is no operation: `name = expression` computes something",
                node.value,
            )
        for target in targets:
            if target.id in known:
                yield (
                    f"`{target.id}` has an equation already: another spelling stands behind `|`",
                    target,
                )
                continue
            known[target.id] = target
            reads[target.id] = {n.id for n in _values(node.value)}
    for circle in _circles({name: read & known.keys() for name, read in reads.items()}):
        told = " → ".join(circle)
        yield f"equations need each other, no value is before the others: {told}", known[circle[0]]


def _targets(node: ast.stmt) -> list[ast.Name] | None:
    """The names on the left side of an equation; None if it is none."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    target = node.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    found = [n for n in names if isinstance(n, ast.Name)]
    return found if len(found) == len(names) else None


def _values(node: ast.expr) -> Iterator[ast.Name]:
    """Names that stand for values, not those that are called."""
    called = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return (n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in called)


def _circles(reads: dict[str, set[str]]) -> Iterator[list[str]]:
    """Every circle, as names of which each reads the next; the first is there again at the end."""
    while True:
        try:
            TopologicalSorter(reads).prepare()
        except CycleError as error:
            circle = list(error.args[1][::-1])
            reads[circle[0]] = reads[circle[0]] - {circle[1]}
            yield circle
        else:
            return
