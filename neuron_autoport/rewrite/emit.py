"""Rewritten classes as a Python file: readable, importable, each a subclass of its original.

The originals are not touched. A generated class keeps the name, and `isinstance` with the original
holds; its forward is the original's source with the planned edits. The file is written to the cache, so that
tracebacks and torch.compile see real source.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import libcst as cst
from torch import nn

from neuron_autoport.cache import cache_folder
from neuron_autoport.models.python_file import import_file, write_whole
from neuron_autoport.rewrite.imports import BY_NAME, by_name, ordinary
from neuron_autoport.rewrite.plan import ClassPlan


@dataclass(frozen=True, eq=False)
class Generated:
    """A generated file, and the new class of each plan that changes something."""

    path: Path
    text: str
    classes: dict[ClassPlan, type[nn.Module]]


def generate(plans: Iterable[ClassPlan], title: str) -> Generated:
    """Write and import the rewritten classes of these plans.

    Args:
        title: what they were made from; stands in the file's first line.
    """
    changed = [(p, new) for p in plans if (new := p.new_source()) is not None]
    names: dict[tuple[type, str], str] = {}
    for plan, new in changed:
        cls = plan.trace.module_class
        if (cls, new) not in names:
            names[cls, new] = _free_name(cls.__name__, set(names.values()))
    named = {p: names[p.trace.module_class, new] for p, new in changed}
    alias = _aliases({c.__module__ for c, _ in names})
    taken: dict[str, Any] = dict.fromkeys(names.values())  # what each name of the file means
    blocks: list[str] = []
    needed: dict[str, set[str]] = {}
    for plan, new in {named[p]: (p, new) for p, new in changed}.values():
        cls, module = plan.trace.module_class, plan.trace.forward.__module__
        space, own = plan.trace.forward.__globals__, _globals_read(new, plan)
        clash = {n for n in own if taken.setdefault(n, space[n]) is not space[n]}
        if clash:
            alias.setdefault(module, _alias(module, set(alias.values())))
            new = _qualified(new, {n: f"{alias[module]}.{n}" for n in clash})
        blocks.append(_class_block(named[plan], f"{alias[cls.__module__]}.{cls.__qualname__}", new))
        needed.setdefault(module, set()).update(own - clash)
    for module, names_of in needed.items():
        if names_of and not ordinary(module):
            alias.setdefault(module, _alias(module, set(alias.values())))
    used = {m: a for m, a in alias.items() if any(f"{a}." in b for b in blocks)}
    used |= {m: alias[m] for m, n in needed.items() if n and not ordinary(m)}
    text = _file_text(title, needed, blocks, used)
    made = _load(text)
    return Generated(
        Path(made.__file__ or ""), text, {p: getattr(made, n) for p, n in named.items()}
    )


def _free_name(name: str, taken: set[str]) -> str:
    free, count = name, 2
    while free in taken:
        free, count = f"{name}_{count}", count + 1
    return free


def _aliases(modules: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for module in sorted(modules):
        found[module] = _alias(module, set(found.values()))
    return found


def _alias(module: str, taken: set[str]) -> str:
    return _free_name("upstream_" + module.rpartition(".")[2], taken)


def _qualified(source: str, names: dict[str, str]) -> str:
    """`source` with global names that mean something else in the file written in full."""
    return cst.parse_module(source).visit(_Qualify(names)).code


class _Qualify(cst.CSTTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names

    def leave_Attribute(self, original_node: Any, updated_node: Any) -> Any:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: Any, updated_node: Any) -> Any:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        full = self.names.get(original_node.value)
        return cst.parse_expression(full) if full else updated_node


def _class_block(name: str, base: str, forward: str) -> str:
    docstring = f'"""`{base.rpartition(".")[2]}` with a rewritten forward."""'
    shell = cst.parse_module(f"class {name}({base}):\n    {docstring}\n")
    function, cls = cst.parse_module(forward).body[0], shell.body[0]
    assert isinstance(function, cst.FunctionDef) and isinstance(cls, cst.ClassDef)
    method = function.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    body = cls.body.with_changes(
        body=[*cls.body.body, method]
    )  # as a tree: strings stay as they are
    return shell.with_changes(body=[cls.with_changes(body=body)]).code


def _globals_read(source: str, plan: ClassPlan) -> set[str]:
    space = plan.trace.forward.__globals__
    names = {n.id for n in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(n, ast.Name)}
    return {n for n in names if n in space and not hasattr(builtins, n)} - {"NF", "NK"}


def _file_text(
    title: str, needed: dict[str, set[str]], blocks: list[str], sources: dict[str, str]
) -> str:
    found_by_name = {m: a for m, a in sorted(sources.items()) if not ordinary(m)}
    lines = [
        f'"""{title}, rewritten by neuron-autoport.\n',
        "Each class is the original with another forward; rewritten places are marked `# autoport: RULE`.",
        '"""\n',
        "from __future__ import annotations\n",
        *([f"{BY_NAME}\n"] if found_by_name else []),
        *(f"import {m} as {a}" for m, a in sorted(sources.items()) if ordinary(m)),
        "from neuron_autoport import kernels as NK",
        "from neuron_autoport import nf as NF",
    ]
    for module, names in sorted(needed.items()):
        if names and module not in found_by_name:
            listed = "".join(f"    {n},\n" for n in sorted(names))
            lines.append(f"from {module} import (\n{listed})")
    if found_by_name:
        lines.append("\n# The model's own code, which transformers has loaded under this name.")
    for module, alias in found_by_name.items():
        lines += by_name(module, alias, needed.get(module, ()))
    unused = {"NF": "NF.", "NK": "NK."}
    body = "\n\n\n".join(b.rstrip("\n") for b in blocks)
    lines = [
        x
        for x in lines
        if not any(x.endswith(f" as {n}") and u not in body for n, u in unused.items())
    ]
    return "\n".join(lines) + "\n\n\n" + body + "\n"


def _load(text: str) -> ModuleType:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = f"neuron_autoport_generated_{digest}"
    path = cache_folder("generated") / f"{name}.py"
    if name not in sys.modules and not (path.exists() and path.read_text(encoding="utf-8") == text):
        write_whole(path, text)
    return import_file(name, path)
