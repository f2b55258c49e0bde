"""`model.py` of a package: imports, constants, helpers and classes in the order of upstream's file."""

from __future__ import annotations

import inspect
import re
from typing import Any

from transformers import PretrainedConfig

from neuron_autoport.export.class_facts import is_modeling
from neuron_autoport.export.classes import Classes
from neuron_autoport.export.globals import RUNTIME, Names
from neuron_autoport.export.subject import Subject
from neuron_autoport.rewrite.imports import comes_with_model


def model_text(subject: Subject, header: str) -> tuple[str, list[str]]:
    """(the text, the class names in it).

    Args:
        header: the docstring's text, without quotes.
    """
    config = config_name(subject.recorded.base.config)
    own = type(subject.recorded.base.config).__name__
    names = Names(given={"NF", "NK", "Backbone", "torch", config, own})
    classes = Classes(subject, names, frozenset({config}))
    names.given |= {cls.__name__ for cls in classes.modules if is_modeling(cls)}
    classes.write_all()
    blocks = [(w.order, w.text) for w in classes.written.values()]
    for value, text in names.helpers.values():
        blocks.append(((value.__module__, inspect.getsourcelines(value)[1]), text))
    ordered = [_spaced(text) for _, text in _by_need(sorted(blocks, key=lambda b: b[0]))]
    constants = [f"{n} = {v!r}" for n, v in sorted(names.constants.items())]
    body = "\n\n\n".join([*(["\n".join(constants)] if constants else []), *ordered])
    imports = _imports(names, body, config)
    text = f'"""{header}"""\n\nfrom __future__ import annotations\n\n{imports}\n\n\n{body}\n'
    return text, [w.name for w in classes.written.values()]


def config_name(config: PretrainedConfig) -> str:
    """The configuration's class as a package names it: only transformers' own can be imported."""
    cls = PretrainedConfig if comes_with_model(type(config)) else type(config)
    return cls.__name__


def _spaced(text: str) -> str:
    return text.strip("\n")


def _by_need(blocks: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """Upstream's order, but a base class before what is derived from it."""
    ordered: list[tuple[Any, str]] = []
    waiting = list(blocks)
    while waiting:
        names = {_name(text) for _, text in waiting}
        for block in waiting:
            head = re.match(r"class \w+\(([^)]*)\)", block[1])
            bases = set(re.findall(r"\w+", head.group(1))) if head else set()
            if not bases & names:
                break
        else:  # no class can be its own base
            block = waiting[0]
        waiting.remove(block)
        ordered.append(block)
    return ordered


def _name(text: str) -> str:
    found = re.search(r"^(?:class|def) (\w+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def _imports(names: Names, body: str, config: str) -> str:
    """Import lines in groups: the standard library, torch, this package."""
    lines = set(names.imports)
    words = set(re.findall(r"[A-Za-z_]\w*", body))
    if "torch" in words:
        lines.add("import torch")
    if "nn" in words:
        lines.add("from torch import nn")
    third = sorted((x for x in lines if " torch" in x), key=_key)
    first = sorted((x for x in lines if x not in third), key=_key)
    own = []
    runtime = set(names.from_runtime) | ({"NK"} if "NK." in body else set())
    if runtime:
        own.append(_listed(RUNTIME, sorted(runtime, key=_by_case)))
    if "NF." in body:
        own.insert(0, "from neuron_autoport import nf as NF")
    local = [f"from .config import {config}"] if config in words else []
    return "\n\n".join("\n".join(g) for g in (first, third, own, local) if g)


def _key(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _by_case(name: str) -> tuple[int, str]:
    """Constants, classes, functions, as import sorters have them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def _listed(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 100:
        return line
    return f"from {module} import (\n" + "".join(f"    {n},\n" for n in names) + ")"
