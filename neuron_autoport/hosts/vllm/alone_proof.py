"""Proof that a model may run its requests alone: in turns and in pieces the small model gives what it gives at once.

Two requests take turns on the rewritten small model; every row must be that of one run of the original over the whole
request without a cache. So a cache that the model holds itself, or that lacks something, is not used, whatever the
model calls it; one that depends on chance is refused.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from neuron_autoport.hosts.vllm.alone import Alone, Caches, read_again
from neuron_autoport.hosts.vllm.compat import Refused, refused
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny import TinyConfigError
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.port import port_model
from neuron_autoport.prove.model import small_source
from neuron_autoport.prove.modules import RUN_ERRORS
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rewrite.install import install_all
from neuron_autoport.rules.sources import load_library

_LENGTHS = (13, 9)
_FIRST = 6
_TOLERANCE = 1e-4


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
    install_all(rewritten, port.where, generate(port.plans, "the small model"))
    base = original.get_submodule(port.base) if port.base else original
    new = rewritten.get_submodule(port.base) if port.base else rewritten
    generator = torch.Generator().manual_seed(1)
    size = int(original.config.get_text_config().vocab_size)
    asked = [torch.randint(3, size, (1, n), generator=generator) for n in _LENGTHS]
    found = choose(why.reason, base, new, asked)
    if isinstance(found, Alone):
        return found
    what = f"{why.reason}; nor does it run with one request at a time: {found}"
    raise refused(why.code, what, source.name) from None


def choose(reason: str, base: Any, new: Any, asked: list[torch.Tensor]) -> Alone | str:
    """The fastest way to run requests alone that is right; why none is.

    Args:
        base: the original. new: the rewritten, which is not used if the original changes its weights as it runs.
        asked: ids [1, T] of each request.
    """
    problem = ""
    fresh = copy.deepcopy(base)
    with torch.no_grad():
        try:
            with _Watch(base.parameters()) as watch:
                whole = [read_again(base, ids, 0, {})[0] for ids in asked]
        except RUN_ERRORS as error:
            return _first_line(error)
        new = base if watch.writes else new
        for several, again in ((True, False), (False, False), (True, True)):
            how = Alone(reason, several, again, plain=watch.writes)
            problem = _problem(how, new, asked, whole)
            if not problem:
                return how
        return _unlike_itself(base, fresh, asked, whole, watch.drawn) or problem


def _unlike_itself(
    base: Any, fresh: Any, asked: list[torch.Tensor], whole: list[torch.Tensor], drawn: str
) -> str:
    """Why the original itself does not give the same rows for the same tokens; empty if it does.

    Args:
        base: it has given `whole`, one request after the other. fresh: a copy that has run nothing.
        drawn: the first place where it drew random numbers, or empty.
    """
    again = [read_again(base, ids, 0, {})[0] for ids in asked]
    if not max(map(_off, again, whole)) <= _TOLERANCE:
        why = f"random numbers are drawn at {drawn}" if drawn else "it keeps something of a run"
        return f"two runs of the same tokens differ, in transformers too: {why}"
    off = _off(read_again(fresh, asked[-1], 0, {})[0], whole[-1])
    if not off <= _TOLERANCE:
        why = "what it gives depends on what it was given before, in transformers too"
        return f"{why}: after another request it is off by {off:.1e}"
    return ""


def _off(rows: torch.Tensor, part: torch.Tensor) -> float:
    """The largest difference, relative to the largest value meant."""
    return float((rows - part).abs().max() / part.abs().max().clamp_min(1e-6))


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
            except RUN_ERRORS as error:
                return _first_line(error)
            start, at[i] = at[i], at[i] + piece.shape[1]
            if how.again and at[i] < ids.shape[1]:
                continue
            part = whole[i][:, start : at[i]]
            off = _off(rows, part)
            if not off <= _TOLERANCE:
                return f"its rows are off by {off:.1e}"
    return ""


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


class _Watch(TorchDispatchMode):
    """What operations do beside giving values.

    writes: one changed one of these tensors, whatever view of it the operation was given. drawn: the first place that
    drew random numbers, as `module:line`; empty if none did.
    """

    def __init__(self, kept: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.kept = {t.untyped_storage().data_ptr() for t in kept if t.numel()}
        self.writes, self.drawn = False, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.drawn and torch.Tag.nondeterministic_seeded in func.tags:
            self.drawn = _caller()
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        given |= kwargs or {}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for value in pytree.tree_leaves(given.get(argument.name)):
                    if isinstance(value, torch.Tensor):
                        self.writes |= value.untyped_storage().data_ptr() in self.kept
        return func(*args, **(kwargs or {}))


def _caller() -> str:
    """The line of the model's code that is running."""
    for frame, line in traceback.walk_stack(None):
        name = str(frame.f_globals.get("__name__", "?"))
        if name != __name__ and name.partition(".")[0] not in ("torch", "traceback"):
            return f"{name}:{line}"
    return "?"
