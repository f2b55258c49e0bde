"""Rewritten layers against the original, in a small model: each layer in both dtypes, and the logits."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from neuron_autoport.errors import ModelError
from neuron_autoport.hosts.vllm.masks import window_of
from neuron_autoport.hosts.vllm.written_out import attending
from neuron_autoport.hosts.vllm.written_out.attending import PLAIN
from neuron_autoport.hosts.vllm.written_out.interface import (
    Reading,
    Speaker,
    plain_torch,
    read_layers,
    writes_out,
)
from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny import TinyConfigError
from neuron_autoport.port import base_path, example_inputs
from neuron_autoport.prove.compare import compare
from neuron_autoport.prove.model import small_source
from neuron_autoport.prove.modules import RUN_ERRORS, Call, prove_rewritten
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.tracer import trace_model

# Longer than the windows of a small model, shorter than its tables.
_TOKENS = (41, 13)


@plain_torch()
def call_interface(source: ModelSource) -> tuple[ModelSource, dict[str, str]]:
    """The model with its written-out layers rewritten, and why other classes stay as they are, by name.

    Nothing is rewritten that was not proved; `source` itself comes back if nothing is.
    """
    reading = read_layers(source)
    reasons = dict(reading.reasons)
    if not reading.classes:
        return source, reasons
    speaker = Speaker(source, reading)
    names = [cls.__name__ for cls in reading.classes]
    try:
        wrong = _prove(source, speaker)
    except (TinyConfigError, ModelError) as error:
        wrong = f"it cannot be proved on a small model ({error.what})"
    if wrong is not None:
        return source, reasons | dict.fromkeys(names, wrong)
    return replace(source, prepare=speaker), reasons


def _prove(source: ModelSource, speaker: Speaker) -> str | None:
    """Why the rewrite must not be used, or None."""
    small = small_source(source)
    assert isinstance(small, ModelSource)
    original = real_model(small, dtype=torch.float32, attn_implementation=PLAIN)
    rewritten = copy.deepcopy(original)
    speaker(rewritten, PLAIN)
    reading = speaker.reading(small.config)
    base = base_path(original)
    paths = [f"{base}.{p}".strip(".") for p in reading.forms]
    changed = [p for p in paths if isinstance(rewritten.get_submodule(p), attending.Attending)]
    if not changed:
        return "a small model of its kind has other layers"
    calls, ids, logits = _record(original, changed, int(small.text_config.vocab_size))
    rules, new = _with_rules(rewritten, ids)
    if new is None:
        return "the rewritten model does not run"
    done = set()
    for path in changed:
        kind = (type(original.get_submodule(path)), reading.forms[path.removeprefix(f"{base}.")])
        if kind in done:
            continue
        done.add(kind)
        layer = rewritten.get_submodule(path)
        make = lambda layer=layer: copy.deepcopy(layer)  # noqa: E731
        own = original.get_submodule(path)
        proof = prove_rewritten(path, kind[0].__name__, own, make, calls[path])
        if not proof.passed:
            return f"it is not the attention that it was read as ({path}: {proof.figures()})"
    try:
        exact = _logits(copy.deepcopy(original).double(), ids)
    except RUN_ERRORS:  # code that is written for one dtype: the original itself is the truth
        exact = logits
    if not compare(exact, logits, new, torch.float32).passed:
        return "the logits of the rewritten model are not the original's"
    if _writes_out_elsewhere(replace(small, prepare=speaker)):
        return "for some numbers of tokens it takes another way, where its attention is written out"
    return _far(rules, reading, speaker.reading(source.config))


def _writes_out_elsewhere(small: ModelSource) -> bool:
    """Is there written-out attention left in what runs for one token, or for several?"""
    for tokens in (1, 2, _TOKENS[-1]):
        model = meta_model(small, attn_implementation=TRACE_ATTENTION)
        trace = trace_model(model, (), example_inputs(tokens))
        if any(writes_out(part) for _, part in trace.walk()):
            return True
    return False


def _record(
    model: nn.Module, paths: list[str], vocabulary: int
) -> tuple[dict[str, list[Call]], torch.Tensor, torch.Tensor]:
    """The calls of some modules in one run, its token ids [2, T], and its logits."""
    error: Exception | None = None
    for tokens in _TOKENS:
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(min(3, vocabulary - 1), vocabulary, (2, tokens), generator=generator)
        calls: dict[str, list[Call]] = {}
        hooks = []
        for path in paths:
            note = functools.partial(_note, calls.setdefault(path, []))
            module = model.get_submodule(path)
            hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
        try:
            return calls, ids, _logits(model, ids)
        except RUN_ERRORS as failed:  # a table of fewer positions
            error = failed
        finally:
            for hook in hooks:
                hook.remove()
    what = f"a small model does not run: {error}"
    raise ModelError(what, type(model).__name__, "autoport explain AP411")


def _note(calls: list[Call], _: nn.Module, args: Any, kwargs: Any) -> None:
    calls.append((args, dict(kwargs)))


def _logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def _with_rules(model: nn.Module, ids: torch.Tensor) -> tuple[list[Any], torch.Tensor | None]:
    """The rules of the masks that a run asked for, and its logits."""
    rules: list[Any] = []
    attending._noted.append(rules)
    try:
        return rules, _logits(model, ids)
    except RUN_ERRORS:
        return rules, None
    finally:
        attending._noted.pop()


def _far(rules: list[Any], small: Reading, full: Reading) -> str | None:
    """Why nothing is known of tokens far apart, or None: a trace of the full model shows the near ones only."""
    for rule in rules:
        window, problem = window_of(rule)
        if problem is not None or window is not None:
            return problem or f"its mask has a window of {window}"
    if not rules and not set(small.forms) <= small.tabled:
        return "it makes its mask itself: of tokens far apart nothing is known"
    windows = [any(f.window for f in r.forms.values()) for r in (small, full)]
    if windows[0] and not windows[1]:
        return "a small model of its kind has a window, and it shows none itself"
    return None
