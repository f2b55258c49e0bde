"""Rewritten classes as a Python file: readable, importable, each a subclass of its original.

The originals are not touched. A generated class keeps the name, and `isinstance` with the original
holds; its forward is the original's source with the planned edits. The file is written to the cache, so that
tracebacks and torch.compile see real source.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.util
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from torch import nn

from neuron_autoport.cache import cache_folder
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
    named: dict[ClassPlan, str] = {}
    bodies: dict[tuple[type, str], str] = {}
    blocks: list[str] = []
    needed: dict[str, set[str]] = {}
    for plan in plans:
        new = plan.new_source()
        if new is None:
            continue
        cls = plan.trace.module_class
        if (cls, new) not in bodies:
            name = _free_name(cls.__name__, set(bodies.values()))
            bodies[cls, new] = name
            blocks.append(_class_block(name, cls, new))
            module = plan.trace.forward.__module__
            needed.setdefault(module, set()).update(_globals_read(new, plan))
        named[plan] = bodies[cls, new]
    text = _file_text(title, needed, blocks, {c.__module__ for c, _ in bodies})
    module = _load(text)
    return Generated(
        Path(module.__file__ or ""), text, {p: getattr(module, n) for p, n in named.items()}
    )


def _free_name(name: str, taken: set[str]) -> str:
    free, count = name, 2
    while free in taken:
        free, count = f"{name}_{count}", count + 1
    return free


def _alias(module: str) -> str:
    return "upstream_" + module.rpartition(".")[2]


def _class_block(name: str, cls: type, forward: str) -> str:
    docstring = f'    """`{cls.__name__}` with a rewritten forward."""\n\n'
    base = f"{_alias(cls.__module__)}.{cls.__qualname__}"
    return f"class {name}({base}):\n{docstring}{textwrap.indent(forward.strip(), '    ')}\n"


def _globals_read(source: str, plan: ClassPlan) -> set[str]:
    space = plan.trace.forward.__globals__
    names = {n.id for n in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(n, ast.Name)}
    return {n for n in names if n in space and not hasattr(builtins, n)} - {"NF", "NK"}


def _file_text(
    title: str, needed: dict[str, set[str]], blocks: list[str], sources: set[str]
) -> str:
    lines = [
        f'"""{title}, rewritten by neuron-autoport.\n',
        "Each class is the original with another forward; rewritten places are marked `# autoport: RULE`.",
        '"""\n',
        "from __future__ import annotations\n",
        *(f"import {m} as {_alias(m)}" for m in sorted(sources)),
        "from neuron_autoport import kernels as NK",
        "from neuron_autoport import nf as NF",
    ]
    for module, names in sorted(needed.items()):
        if names:
            listed = "".join(f"    {n},\n" for n in sorted(names))
            lines.append(f"from {module} import (\n{listed})")
    unused = {"NF": "NF.", "NK": "NK."}
    body = "\n\n\n".join(b.rstrip("\n") for b in blocks)
    lines = [
        x for x in lines if not any(x.endswith(f" as {n}") and u not in body for n, u in unused.items())
    ]
    return "\n".join(lines) + "\n\n\n" + body + "\n"


def _load(text: str) -> ModuleType:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = f"neuron_autoport_generated_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    path = cache_folder("generated") / f"{name}.py"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        part = path.with_suffix(f".{id(text)}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
