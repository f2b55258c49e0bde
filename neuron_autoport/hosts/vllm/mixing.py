"""Where the tokens of a sequence meet, found by running the small model: nothing may mix them but what has a cache.

Attention calls go to a function that answers zeros and keeps the rule of their mask; modules with recurrent state
answer zeros. Then tokens are changed, and no later row may change: if one does, something else in the model looks
back, and an engine that shows the model a few tokens at a time would serve it wrong. Nor may it matter in which row a
token stands: those of an engine are of several requests.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from transformers.cache_utils import DynamicCache

from neuron_autoport.errors import ModelError
from neuron_autoport.hosts.vllm.compat import CountsRows, refused
from neuron_autoport.hosts.vllm.masks import Mask
from neuron_autoport.hosts.vllm.places import Placed, step
from neuron_autoport.hosts.vllm.probe import (
    PROBE,
    Handed,
    Run,
    active,
    check_counts,
    noting,
    run_silenced,
)
from neuron_autoport.hosts.vllm.states import state_argument
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.prove.model import small_source

_TOKENS, _CHANGED = 13, 3
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Found:
    """What the runs of the small model showed. config: its text configuration.

    masks: of all attention calls. continued: by class of a mixer, does it go on from its state with several tokens?
    """

    config: Any
    masks: list[Mask]
    continued: dict[str, bool]


def read_masks(source: ModelSource, reasons: Mapping[str, str] | None = None) -> Found:
    """Run the small model.

    Args:
        reasons: why a class that writes out its attention could not be rewritten, by name.

    Raises:
        HostError: something without a cache mixes tokens, or the model does not take another attention.
        TinyConfigError: there is no small model.
    """
    small = small_source(source)
    config = small.text_config if isinstance(small, ModelSource) else small.get_text_config()
    model = _build(small, source.name)
    run = Run(config)
    with torch.no_grad(), noting(run):
        _compare(model, int(config.vocab_size), source.name, reasons or {})
    return Found(config, run.masks, run.continued)


def _build(small: Any, where: str) -> nn.Module:
    try:
        model = real_model(small, dtype=torch.float32, attn_implementation=PROBE)
    except ModelError as error:
        what = f"the model does not take another implementation of its attention: {error.what}"
        raise refused("AP411", what, where) from None
    for module in model.modules():
        if state_argument(type(module)) is not None:
            module.forward = functools.partial(_one_by_one, module)
    return model


def _one_by_one(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module with a state, without one: each token by itself."""
    argument = state_argument(type(module))
    names = tuple(inspect.signature(type(module).forward).parameters)[1:]
    given = dict(zip(names, args, strict=False)) | kwargs
    assert argument is not None

    def rows(start: int, end: int, cache: Any = None) -> Any:
        """The module on some of the tokens."""
        part = functools.partial(_part, start=start, end=end)
        some: dict[str, Any] = {n: pytree.tree_map(part, v) for n, v in given.items()}
        some[argument] = cache
        return type(module).forward(module, **some)

    name = type(module).__name__
    if active and name not in active[-1].continued:
        active[-1].continued[name] = _goes_on(rows, active[-1].config)
    return _joined([rows(i, i + 1) for i in range(_TOKENS)])


def _part(value: Any, start: int, end: int) -> Any:
    has_rows = isinstance(value, torch.Tensor) and value.shape[1:2] == (_TOKENS,)
    return value[:, start:end] if has_rows else value


def _joined(parts: list[Any]) -> Any:
    return pytree.tree_map(lambda *p: p[0] if p[0] is None else torch.cat(p, dim=1), *parts)


def _goes_on(rows: Callable[..., Any], config: Any) -> bool:
    """Does a mixer give in two pieces, with its state between them, what it gives in one?"""
    cache = DynamicCache(config=config)
    try:
        pieces = _joined([rows(0, 6, cache), rows(6, _TOKENS, cache)])
        whole = rows(0, _TOKENS, DynamicCache(config=config))
    except (RuntimeError, ValueError, IndexError):
        return False
    return not _differ(_later_rows(whole), _later_rows(pieces))


@dataclass(frozen=True)
class _Call:
    """One module call of a run: the later rows of the tensors it was given, and of those it gave."""

    path: str
    owner: type
    given: tuple[torch.Tensor, ...]
    made: tuple[torch.Tensor, ...]


def _compare(model: nn.Module, vocabulary: int, where: str, reasons: Mapping[str, str]) -> None:
    """Run twice with other first tokens; refuse at the first module whose later rows alone differ after it."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, vocabulary, (1, _TOKENS), generator=generator)
    other = ids.clone()
    other[:, :_CHANGED] = (ids[:, :_CHANGED] + vocabulary // 2) % vocabulary
    calls, after = _calls(model, ids, where), _calls(model, other, where)
    for path, call in calls.items():
        if len(call) > 1 and state_argument(call[0].owner) is not None:
            raise refused("AP411", f"{path} runs several times in one pass, with one state", where)
    changed = [
        first
        for path in calls
        for first, second in zip(calls[path], after.get(path, ()), strict=False)
        if first.given
        and _differ(first.made, second.made)
        and not _differ(first.given, second.given)
    ]
    if changed:
        name = changed[0].owner.__name__
        what = f"{changed[0].path} ({name}) looks back at earlier tokens by itself"
        if name in reasons:
            what += f"; its attention is written out, and {reasons[name]}"
        raise refused("AP411", what, where)
    check_rows(model, ids, where)
    check_counts(model, ids, where)


def _differ(before: tuple[torch.Tensor, ...], after: tuple[torch.Tensor, ...]) -> bool:
    for a, b in zip(before, after, strict=False):
        least = max(float(a.abs().max()), 1e-6) * _TOLERANCE
        if a.shape == b.shape and bool(((a - b).abs() > least).any()):
            return True
    return False


def check_rows(model: nn.Module, ids: torch.Tensor, where: str) -> None:
    """The rows of a step are tokens of several requests: where a token stands, only its position may say.

    Args:
        model: its attention silenced. ids: [1, T].

    Raises:
        HostError: tokens that change places, each with its position, do not give the same.
    """
    places = torch.arange(ids.shape[1])
    order = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(3))]
    whole, handed = _rows_run(model, ids, places, where)
    some = [order]
    if any(isinstance(m, Placed) for m in model.modules()):
        some.append(order[: len(order) // 2])  # a count from the last row is none from the first
    for rows in some:
        made, given = _rows_run(model, ids, rows, where)
        for (name, first), (_, second) in zip(handed, given, strict=True):
            if _differ(tuple(x[..., rows, :] for x in first), second):
                raise CountsRows(name, where)
        if _differ((whole[:, rows],), (made,)):
            raise CountsRows("", where)


def _rows_run(
    model: nn.Module, ids: torch.Tensor, rows: torch.Tensor, where: str
) -> tuple[torch.Tensor, Handed]:
    """What the model makes of these tokens, each at its position, and what it hands to its attention."""
    with noting(Run(getattr(model, "config", None))) as noted, step(rows):
        out = run_silenced(model, where, input_ids=ids[:, rows], position_ids=rows[None])
    return out[0] if isinstance(out, tuple) else out.logits, noted.handed


def _calls(model: nn.Module, ids: torch.Tensor, where: str) -> dict[str, list[_Call]]:
    """The module calls of one run by path, in the order they end; the whole model is the last."""
    found: dict[str, list[_Call]] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            given = _later_rows((args, tuple(kwargs.values())))
            call = _Call(path or "the model", type(module), given, _later_rows(out))
            found.setdefault(call.path, []).append(call)

        return hook

    hooks = [m.register_forward_hook(keep(n), with_kwargs=True) for n, m in model.named_modules()]
    try:
        run_silenced(model, where, input_ids=ids)
    finally:
        for handle in hooks:
            handle.remove()
    return found


def _later_rows(values: Any) -> tuple[torch.Tensor, ...]:
    """Rows after the changed ones of every tensor [1, T, ...] or, for experts, [T, ...]."""
    rows = []
    for value in pytree.tree_leaves(values):
        if not isinstance(value, torch.Tensor):
            continue
        value = torch.view_as_real(value) if value.is_complex() else value
        if value.shape[:2] == (1, _TOKENS):
            rows.append(value[0, _CHANGED:].float())
        elif value.shape[:1] == (_TOKENS,):
            rows.append(value[_CHANGED:].float())
    return tuple(r.clone() for r in rows)
