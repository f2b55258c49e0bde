"""One `nn.Module` of the user's own: `FILE.py:CLASS`, found, imported and made.

Importing the file runs it, so that is done only when the user allows it; that the file and the class exist
is looked up without running anything. Whatever the user's code raises becomes a `ModelError`
with its file, line and column.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import linecache
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import nn

from neuron_autoport.errors import ModelError
from neuron_autoport.models.failures import one_line
from neuron_autoport.models.inputs import Input
from neuron_autoport.models.python_file import import_file
from neuron_autoport.nearest import near

_OURS = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, eq=False)
class OwnModule:
    """A class of the user's, and how an instance is made and called.

    name: as given. path: of the file. made_by: the class, or a function that returns a module.
    init: its keyword arguments. inputs: of forward. dtype: it is traced in.
    """

    name: str
    path: Path
    made_by: Callable[..., Any]
    inputs: tuple[Input, ...]
    init: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    kind: Literal["module"] = "module"

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def called(self) -> str:
        """Name of the class or function."""
        return self.made_by.__name__

    def new(self) -> nn.Module:
        """A new instance, as its class makes it."""
        made = self.made_by(**self.init)
        if not isinstance(made, nn.Module):
            what = f"{self.called} returns {type(made).__name__}, not a torch.nn.Module."
            raise ModelError(what, str(self.path), "name a class, or a function that returns one")
        return made

    def failed(self, error: BaseException, doing: str, step: str) -> ModelError:
        """What to tell the user of an error raised by the code."""
        if isinstance(error, ModelError):
            return error
        return ModelError(f"{doing}: {one_line(error)}", place_of(error) or str(self.path), step)


def find_class(name: str) -> tuple[Path, str]:
    """The file and the class that `FILE.py:CLASS` names. Nothing is run.

    CLASS may be left out if the file has one subclass of something only.

    Raises:
        ModelError: there is no such file or class.
    """
    file, _, wanted = name.partition(".py:") if ".py:" in name else (name[: -len(".py")], "", "")
    path = Path(file + ".py").expanduser()
    if not path.is_file():
        step = f"ls {path.parent}" if path.parent.is_dir() else f"{path.parent} does not exist"
        raise ModelError("There is no such file.", str(path), step)
    classes, functions = _defined(path)
    if not wanted and len(classes) == 1:
        return path, classes[0]
    if wanted in (*classes, *functions):
        return path, wanted
    listed = ", ".join(classes) or "none"
    if not wanted:
        what = f"Which class of {path}? It has {listed}."
    else:
        what = f"{path} has no class `{wanted}`{near(wanted, classes)}; it has {listed}."
    example = classes[0] if classes else "CLASS"
    raise ModelError(what, str(path), f"name one, as in {path}:{example}")


def _defined(path: Path) -> tuple[list[str], list[str]]:
    """Classes with a base, and functions, of the outermost level of a file."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        where = f"{path}:{error.lineno or 1}:{error.offset or 1}"
        raise ModelError(f"The file is not Python: {error.msg}", where, "mend it") from None
    except ValueError as error:
        raise ModelError(f"The file is not Python: {error}", str(path), "mend it") from None
    classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef) and n.bases]
    return classes, [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]


def needed_arguments(path: Path, wanted: str) -> list[str]:
    """Names of the arguments that `wanted.forward` must be given, read without running the file."""
    tree = ast.parse(path.read_bytes())
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    while wanted in classes:
        found = [n for n in classes[wanted].body if isinstance(n, ast.FunctionDef)]
        forward = next((n for n in found if n.name == "forward"), None)
        if forward is not None:
            named = [*forward.args.posonlyargs, *forward.args.args][1:]
            return [a.arg for a in named[: len(named) - len(forward.args.defaults)]]
        bases = [b.id for b in classes.pop(wanted).bases if isinstance(b, ast.Name)]
        wanted = next((b for b in bases if b in classes), "")
    return []


def load_own_module(
    name: str,
    *,
    inputs: tuple[Input, ...],
    init: dict[str, Any],
    dtype: torch.dtype = torch.bfloat16,
) -> OwnModule:
    """Import the file of `FILE.py:CLASS` and take its class. This runs the file.

    Raises:
        ModelError: nothing by that name, or the file cannot be run.
    """
    path, wanted = find_class(name)
    space = vars(_imported(path))
    made_by = space.get(wanted)
    if not callable(made_by):
        raise ModelError(f"{path} has no class `{wanted}` once it has run.", str(path), "mend it")
    if isinstance(made_by, type) and not issubclass(made_by, nn.Module):
        step = f"name a subclass of torch.nn.Module, or a function that returns one: {path}:NAME"
        raise ModelError(f"{wanted} is no torch.nn.Module.", str(path), step)
    return OwnModule(name, path, made_by, inputs, init, dtype)


def _imported(path: Path) -> ModuleType:
    """Run the file, as `python FILE` would find what it imports; as part of its package in one."""
    resolved = path.resolve()
    root, dotted = resolved.parent, resolved.stem
    while (root / "__init__.py").is_file():
        root, dotted = root.parent, f"{root.name}.{dotted}"
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    linecache.checkcache(str(resolved))
    try:
        if "." in dotted:
            return importlib.import_module(dotted)
        content = resolved.read_bytes()
        digest = hashlib.sha256(str(resolved).encode() + b"\0" + content).hexdigest()[:16]
        return import_file(f"neuron_autoport_own_{digest}", resolved)
    except (Exception, SystemExit) as error:  # the user's own code: it raises what it likes
        where = place_of(error) or str(path)
        step = f"make it run first: python {path}"
        raise ModelError(f"{path.name} cannot be run: {one_line(error)}", where, step) from error


def parse_init(text: str | None) -> dict[str, Any]:
    """The keyword arguments of `--init`, a JSON object.

    Raises:
        ModelError: it is none.
    """
    if not text:
        return {}
    step = """write a JSON object: --init '{"hidden_size": 64}'"""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"--init, column {error.colno}"
        raise ModelError(f"--init is not JSON: {error.msg}.", where, step) from None
    if not isinstance(value, dict):
        raise ModelError("--init holds no object.", "--init", step)
    return value


def signature_of(function: Any) -> str:
    """`(hidden, mask=None)` of a method or class, without `self` and annotations."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    shown = [str(p.replace(annotation=p.empty)) for p in parameters if p.name != "self"]
    return f"({', '.join(shown)})"


def place_of(error: BaseException) -> str | None:
    """`file:line:column` of the innermost frame of an error that is neither torch's nor ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}:{error.offset or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((_OURS, _TORCH, "<frozen"))]
    if not theirs:
        return None
    last = theirs[-1]
    column = getattr(last, "colno", None)
    return f"{last.filename}:{last.lineno}" + (f":{column + 1}" if column is not None else "")
