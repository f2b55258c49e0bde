"""Where the global names of exported source come from: an import, a copied helper, or nowhere."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import libcst as cst
from torch import nn

from neuron_autoport.export import runtime
from neuron_autoport.export.subject import ExportError
from neuron_autoport.export.tidy import clean_header

RUNTIME = runtime.__name__
_PLAIN = (bool, int, float, str, type(None))


def global_names(source: str, space: dict[str, Any]) -> set[str]:
    """Names that a function's source reads from the globals it was written for."""
    tree = ast.parse(textwrap.dedent(source))
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)} - bound
    return {n for n in read if n in space and not hasattr(builtins, n)}


class Names:
    """Gathers what the exported classes need: import lines, and helpers that are copied.

    helpers: by name, the object and its source. wanted: classes that must be exported too.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self.given = set(given)  # names the file has anyway
        self.meaning: dict[str, Any] = {}
        self.imports: set[str] = set()
        self.from_runtime: set[str] = set()
        self.helpers: dict[str, tuple[Any, str]] = {}
        self.constants: dict[str, Any] = {}
        self.wanted: list[type] = []

    def need(self, source: str, space: dict[str, Any], where: str) -> None:
        """Take in all names of a piece of source.

        Raises:
            ExportError: one that is of transformers and that a package has no other form of.
        """
        for name in sorted(global_names(source, space) - self.given):
            known = self.meaning.setdefault(name, space[name])
            if known is not space[name] and known != space[name]:
                raise ExportError(f"`{name}` means two things in the source of {where}", where)
            if known is space[name]:
                self._add(name, space[name], where)

    def _add(self, name: str, value: Any, where: str) -> None:
        if name in self.helpers or name in self.constants:
            return
        if isinstance(value, ModuleType):
            self.imports.add(_module_import(name, value))
        elif getattr(runtime, name, None) is value:
            self.from_runtime.add(name)
        elif (home := _home(value)) is not None:
            alias = "" if value.__name__ == name else f" as {name}"
            self.imports.add(f"from {home} import {value.__name__}{alias}")
        elif isinstance(value, type) and issubclass(value, nn.Module):
            self.wanted.append(value)
        elif isinstance(function := inspect.unwrap(value), FunctionType):
            self._copy(name, function)
        elif _plain(value):
            self.constants[name] = value
        else:
            what = f"{where} uses `{name}` ({type(value).__name__}), which only transformers has"
            raise ExportError(what, where)

    def _copy(self, name: str, function: FunctionType) -> None:
        tree = cst.parse_module(textwrap.dedent(inspect.getsource(function)))
        body = tree.body[0]
        if not isinstance(body, cst.FunctionDef):
            raise ExportError(f"`{name}` is no plain function", function.__module__)
        text = tree.with_changes(body=[clean_header(body).with_changes(leading_lines=[])]).code
        self.helpers[name] = (function, text)
        self.need(text, function.__globals__, name)


def _module_import(name: str, module: ModuleType) -> str:
    path = module.__name__
    parent, _, leaf = path.rpartition(".")
    if leaf == name and parent:
        return f"from {parent} import {leaf}"
    return f"import {path}" if path == name else f"import {path} as {name}"


def _home(value: Any) -> str | None:
    """The module of the standard library or of torch that a function or class is imported from."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    root = module.partition(".")[0]
    if root != "torch" and root not in sys.stdlib_module_names:
        return None
    while "." in module and getattr(sys.modules[module.rpartition(".")[0]], name, None) is value:
        module = module.rpartition(".")[0]
    return module if getattr(sys.modules[module], name, None) is value else None


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(_plain(v) for v in value)
    if isinstance(value, dict):
        return all(_plain(k) and _plain(v) for k, v in value.items())
    return isinstance(value, _PLAIN)
