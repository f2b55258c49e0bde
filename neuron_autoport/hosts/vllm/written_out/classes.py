"""The class of a layer with one method rewritten: the original beside what that calls, in a file of its own."""

from __future__ import annotations

import ast
import builtins
import hashlib
import textwrap
from typing import Any

import libcst as cst
from torch import nn

from neuron_autoport.cache import cache_folder
from neuron_autoport.hosts.vllm.written_out.attending import Attending
from neuron_autoport.hosts.vllm.written_out.region import Rewritten
from neuron_autoport.models.python_file import import_file, write_whole
from neuron_autoport.rewrite.imports import BY_NAME, by_name, ordinary


def make_class(
    original: type[nn.Module], made: Rewritten, beside: type = Attending
) -> type[nn.Module]:
    """The subclass of `original` with the rewritten method; its file is in the cache.

    Args:
        beside: has what the method calls.
    """
    text = _file_text(original, made, beside)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = f"neuron_autoport_attending_{digest}"
    path = cache_folder("generated") / f"{name}.py"
    if not (path.exists() and path.read_text(encoding="utf-8") == text):
        write_whole(path, text)
    found: type[nn.Module] = getattr(import_file(name, path), original.__name__)
    return found


def _file_text(original: type[nn.Module], made: Rewritten, beside: type) -> str:
    names = sorted(_globals_read(made.text, made.space))
    module = made.space["__name__"]
    lines = [
        f'"""`{original.__name__}` beside `{beside.__name__}`."""\n',
        "from __future__ import annotations\n",
        *_upstream(original.__module__),
        f"from {beside.__module__} import {beside.__name__}",
    ]
    if names and not ordinary(module):
        lines += [BY_NAME, *by_name(module, "read", names)]
    elif names:
        lines.append(f"from {module} import (\n" + "".join(f"    {n},\n" for n in names) + ")")
    head = f"class {original.__name__}({beside.__name__}, upstream.{original.__qualname__}):"
    shell = cst.parse_module(f'{head}\n    """`{made.name}` is rewritten."""\n')
    method = cst.parse_module(made.text).body[0]
    assert isinstance(method, cst.ClassDef | cst.FunctionDef)
    function: Any = method if isinstance(method, cst.FunctionDef) else method.body.body[0]
    function = function.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    cls = shell.body[0]
    assert isinstance(cls, cst.ClassDef)
    body = cls.body.with_changes(body=[*cls.body.body, function])
    return "\n".join(lines) + "\n\n\n" + shell.with_changes(body=[cls.with_changes(body=body)]).code


def _upstream(module: str) -> list[str]:
    if ordinary(module):
        return [f"import {module} as upstream"]
    return [BY_NAME, *by_name(module, "upstream")]


def _globals_read(text: str, space: dict[str, Any]) -> set[str]:
    tree = ast.parse(textwrap.dedent(text))
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return {n for n in names if n in space and not hasattr(builtins, n)}
