"""Small things of the concrete syntax tree that several modules of the export need."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import libcst as cst

from neuron_autoport.export.subject import ExportError
from neuron_autoport.rewrite.names import walk


def code(node: cst.CSTNode) -> str:
    """The source of a node."""
    return cst.Module([]).code_for_node(node).strip()


def tight(function: cst.FunctionDef) -> cst.FunctionDef:
    """A function without empty lines before its first statement."""
    first = function.body.body[0]
    lines = list(getattr(first, "leading_lines", ()))
    while lines and lines[0].comment is None:
        lines.pop(0)
    if not hasattr(first, "leading_lines"):
        return function
    body = [first.with_changes(leading_lines=lines), *function.body.body[1:]]
    return function.with_changes(body=function.body.with_changes(body=body))


def parsed_function(text: str, within: str | None = None) -> cst.FunctionDef:
    """The one function that a text is.

    Args:
        within: the class, for the error.
    """
    tree = cst.parse_module(textwrap.dedent(text).lstrip("\n"))
    found = tree.body[0]
    if not isinstance(found, cst.FunctionDef):
        raise ExportError(f"the forward of {within or 'a class'} is no plain function", within)
    return found


def with_comments(lines: Sequence[str]) -> list[str]:
    """Comment lines joined to the statement below them."""
    found: list[str] = []
    waiting = ""
    for line in lines:
        if line.startswith("#"):
            waiting += line + "\n"
        else:
            found.append(waiting + line + "\n")
            waiting = ""
    return found


def own_names(function: cst.FunctionDef, stored: bool = True) -> set[str]:
    """x of every `self.x` in a function; stored: also of `self.x = ...`."""
    targets: set[cst.CSTNode] = set()
    if not stored:
        targets = {t.target for n in walk(function) if isinstance(n, cst.Assign) for t in n.targets}
    return {
        n.attr.value
        for n in walk(function)
        if isinstance(n, cst.Attribute) and n not in targets and code(n.value) == "self"
    }


def calls(function: cst.FunctionDef, name: str) -> bool:
    """Does a function call this name?"""
    return any(isinstance(n, cst.Call) and code(n.func) == name for n in walk(function))
