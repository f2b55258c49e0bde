"""Proof that a model may run its requests alone: in turns and in pieces the small model gives what it gives at once.

Two requests take turns on the rewritten small model; every row must be that of one run of the original over the whole
request without a cache. So a cache that the model holds itself, or that lacks something, is not used, whatever the
model calls it; one that depends on chance is refused.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import torch
from torch import nn

from neuron_autoport.hosts.vllm.alone import Alone, Caches, read_again
from neuron_autoport.hosts.vllm.compat import Refused, refused
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny import TinyConfigError
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.port import Port, port_model
from neuron_autoport.prove.model import small_source
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rewrite.install import install
from neuron_autoport.rules.sources import load_library

_LENGTHS = (13, 9)
_FIRST = 6
_TOLERANCE = 1e-4
_BUILDING = ("__init__", "_init_weights", "reset_parameters", "post_init")
_RUN_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError)


def prove_alone(source: ModelSource, proved: ProvedPort, why: Refused) -> Alone:
    """How the model runs its requests alone.

    Args:
        source: as transformers has it. why: no cache of vLLM would do.

    Raises:
        Refused: `why`, where the small model gives other rows with its own cache, or there is no small model.
    """
    try:
        small = small_source(source)
    except TinyConfigError:
        raise why from None
    original = real_model(small, dtype=torch.float32, attn_implementation="eager")
    rewritten = real_model(small, dtype=torch.float32, attn_implementation="eager")
    library = load_library(trust_code=source.trust_remote_code)
    port = port_model(small, library, without=proved.port.without)
    _install(rewritten, port)
    base = original.get_submodule(port.base) if port.base else original
    new = rewritten.get_submodule(port.base) if port.base else rewritten
    generator = torch.Generator().manual_seed(1)
    size = int(original.config.get_text_config().vocab_size)
    asked = [torch.randint(3, size, (1, n), generator=generator) for n in _LENGTHS]
    found = choose(_reason(why), base, new, asked)
    if isinstance(found, Alone):
        return found
    what = f"{_reason(why)}; nor does it run with one request at a time: {found}"
    raise refused(why.code, what, source.name) from None


def choose(reason: str, base: Any, new: Any, asked: list[torch.Tensor]) -> Alone | str:
    """The fastest way to run requests alone that is right; why none is.

    Args:
        base: the original. new: the rewritten. asked: ids [1, T] of each request.
    """
    problem = ""
    with torch.no_grad():
        try:
            whole = [read_again(base, ids, 0, {})[0] for ids in asked]
        except _RUN_ERRORS as error:
            return _first_line(error)
        for how in (Alone(reason, True), Alone(reason, False), Alone(reason, True, again=True)):
            problem = _problem(how, new, asked, whole)
            if not problem:
                return how
    return problem


def _problem(how: Alone, new: Any, asked: list[torch.Tensor], whole: list[torch.Tensor]) -> str:
    """Why requests that take turns do not give the rows of the original, run on each as a whole; empty if they do.

    Those of a model that is read again may depend on later tokens: its last rows are compared, the piece being whole.
    """
    caches: list[Caches] = [{} for _ in asked]
    at = [0 for _ in asked]
    step = 3 if how.several else 1
    while any(a < ids.shape[1] for a, ids in zip(at, asked, strict=True)):
        for i, ids in enumerate(asked):
            piece = ids[:, at[i] : at[i] + (step if at[i] else _FIRST)]
            if not piece.shape[1]:
                continue
            try:
                rows, caches[i] = how.advance(new, piece, at[i], caches[i])
            except _RUN_ERRORS as error:
                return _first_line(error)
            start, at[i] = at[i], at[i] + piece.shape[1]
            if how.again and at[i] < ids.shape[1]:
                continue
            part = whole[i][:, start : at[i]]
            off = float((rows - part).abs().max() / part.abs().max().clamp_min(1e-6))
            if not off <= _TOLERANCE:
                return f"its rows are off by {off:.1e}"
    return ""


def _install(model: nn.Module, port: Port) -> None:
    made = generate(port.plans, "the small model")
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, plan in port.where.items():
        module = modules.get(path)
        if module is not None and plan in made.classes and type(module) is plan.trace.module_class:
            install(module, plan, made.classes[plan])


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _reason(why: Refused) -> str:
    """What was refused, without the words around it."""
    return why.what.rpartition("serve this model here: ")[2]


def writes_weights(model: nn.Module) -> bool:
    """Does code of the model, outside of building it, change `.data` of a weight? vLLM's layers keep theirs packed."""
    return any(_writes(cls) for cls in {type(m) for m in model.modules()})


def _writes(cls: type[Any]) -> bool:
    if cls.__module__.startswith("torch."):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return False
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inside = [n for m in methods if m.name not in _BUILDING for n in ast.walk(m)]
    return any(
        isinstance(n, ast.Attribute)
        and n.attr == "data"
        and isinstance(n.value, ast.Attribute)
        and n.value.attr in ("weight", "bias")
        for n in inside
    )
