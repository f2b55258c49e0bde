"""Do the arguments of a call fit its function? Each that does not is told at its own place."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from neuron_autoport.nearest import near

Fault = tuple[str, ast.AST]


def check_arguments(node: ast.Call, signature: inspect.Signature) -> Iterator[Fault]:
    """Arguments that the function does not take, and those it needs and does not get.

    A call with `**norm` may get any that are missing from there.
    """
    open_ended = any(isinstance(a, ast.Starred) for a in node.args)
    open_ended |= any(k.arg is None for k in node.keywords)
    kinds = inspect.Parameter
    takes = {n: p for n, p in signature.parameters.items() if p.kind is not kinds.VAR_POSITIONAL}
    any_name = any(p.kind is kinds.VAR_KEYWORD for p in takes.values())
    in_order = [
        n
        for n, p in takes.items()
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    any_count = len(takes) != len(signature.parameters)
    if len(node.args) > len(in_order) and not any_count:
        most = len(in_order)
        yield f"takes {most} arguments by position, found {len(node.args)}", node.args[most]
    given = set(in_order[: len(node.args)])
    misspelt = set[str]()
    for keyword in (k for k in node.keywords if k.arg is not None):
        name = str(keyword.arg)
        if name not in takes and not any_name:
            others = {k.arg for k in node.keywords}
            hint = near(name, takes.keys() - given - others)
            misspelt |= set(hint.split("`")[1:2])
            yield f"takes no argument `{name}`{hint}", keyword
        elif name in given:
            yield f"gets `{name}` by position already", keyword
    given |= {k.arg for k in node.keywords if k.arg is not None} | misspelt
    needed = [
        n for n, p in takes.items() if p.default is p.empty and p.kind is not kinds.VAR_KEYWORD
    ]
    missing = [f"`{n}`" for n in needed if n not in given]
    if missing and not open_ended:
        yield f"needs {', '.join(missing)}", node
