"""An example of a rule in the words of a user's own file: the class, and all it needs of that file.

Classes, functions and constants of the outermost level come along as they are written, imported names as import
lines; what examples see anyway (torch, nn, F, ...) is left out.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import site
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_SEEN: dict[str, Any] = {
    "math": math, "torch": torch, "nn": nn, "F": torch.nn.functional, "ACT2FN": ACT2FN,
    "ALL_ATTENTION_FUNCTIONS": ALL_ATTENTION_FUNCTIONS,
}  # fmt: skip


class NoExample(Exception):
    """The source of a class cannot stand by itself."""


def own_source(cls: type[nn.Module], module: ModuleType, text: str) -> str:
    """Source that defines `cls`, last, by itself.

    Args:
        module: the imported file. text: the file.

    Raises:
        NoExample: it needs names that no import or definition of the outermost level gives.
    """
    tree = ast.parse(text)
    lines = text.splitlines()
    makers: dict[str, ast.stmt] = {}
    for statement in tree.body:
        for name in _bound(statement):
            makers[name] = statement
    if cls.__name__ not in makers or not isinstance(makers[cls.__name__], ast.ClassDef):
        raise NoExample(f"{cls.__name__} is not defined at the outermost level of its file")
    needed = _needed(cls.__name__, makers, module)
    imports, blocks = [], []
    for statement in tree.body:
        names = [n for n in _bound(statement) if n in needed]
        if not names or makers[cls.__name__] is statement:
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imports += _imports(statement, names, module)
        else:
            blocks.append(_text(statement, lines))
    blocks.append(_text(makers[cls.__name__], lines))
    head = ["\n".join(imports)] if imports else []
    return "\n\n\n".join([*head, *blocks]).rstrip() + "\n"


def _needed(start: str, makers: dict[str, ast.stmt], module: ModuleType) -> set[str]:
    """Names of the file that `start` reads, directly or through what it reads."""
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in found or name not in makers or _is_seen(name, module):
            continue
        found.add(name)
        statement = makers[name]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if isinstance(statement, ast.If | ast.Try | ast.For | ast.While | ast.With):
            raise NoExample(f"{name} is made by a statement that depends on more than itself")
        todo += [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
        todo += _bound(statement)
    return found


def _is_seen(name: str, module: ModuleType) -> bool:
    return name in _SEEN and vars(module).get(name) is _SEEN[name]


def _bound(statement: ast.stmt) -> list[str]:
    """Names a statement of the outermost level binds."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(a.asname or a.name).split(".")[0] for a in statement.names]
    nodes = ast.walk(statement)
    return [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _imports(
    statement: ast.Import | ast.ImportFrom, names: list[str], module: ModuleType
) -> list[str]:
    wanted = [a for a in statement.names if (a.asname or a.name).split(".")[0] in names]
    if isinstance(statement, ast.Import):
        for alias in wanted:
            _check_elsewhere(alias.name, module)
        return [ast.unparse(ast.Import(wanted))]
    if statement.module == "__future__":
        return []
    source = "." * statement.level + (statement.module or "")
    full = importlib.util.resolve_name(source, module.__package__) if statement.level else source
    _check_elsewhere(full, module)
    return [ast.unparse(ast.ImportFrom(full, wanted, 0))]


def _check_elsewhere(name: str, module: ModuleType) -> None:
    """Refuse what is only found because it lies beside the file: an example is run from anywhere."""
    file = getattr(sys.modules.get(name), "__file__", None)
    home = Path(module.__file__ or "").resolve().parent
    installed = any(Path(p).resolve() == home or Path(p).resolve() in home.parents
                    for p in site.getsitepackages())  # fmt: skip
    if file is not None and not installed and Path(file).resolve().is_relative_to(home):
        raise NoExample(f"it imports {name}, which lies beside the file")


def _text(statement: ast.stmt, lines: list[str]) -> str:
    first = min(
        statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", [])), 10**9
    )
    return "\n".join(lines[first - 1 : statement.end_lineno])
