"""A model with its attention silenced: each call answers zeros, and notes who asked and by which rule of a mask."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neuron_autoport.hosts.vllm.compat import refused
from neuron_autoport.hosts.vllm.masks import Mask, chunk_of, layer_key, window_of
from neuron_autoport.hosts.vllm.written_out.interface import asks_interface

PROBE = "neuron_autoport_mixing"
# Class that attends; queries, keys and values, [B, N, T, D] each.
Handed = list[tuple[str, tuple[torch.Tensor, ...]]]


@dataclass
class Run:
    """What one run noted. rules: masks with the rule of each. asked: how often modules attended, by identity.

    handed: by all calls, each with the class that attended.
    continued: by class of a mixer, does it go on from its state with several tokens at once?
    """

    config: Any
    continued: dict[str, bool] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)
    handed: Handed = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    rules: list[tuple[torch.Tensor, Callable[..., Any]]] = field(default_factory=list)


active: list[Run] = []


@contextlib.contextmanager
def noting(run: Run) -> Iterator[Run]:
    """What happens inside is noted in this run alone."""
    active.append(run)
    try:
        yield run
    finally:
        active.pop()


def run_silenced(model: nn.Module, where: str, **given: torch.Tensor) -> Any:
    """The model's result.

    Raises:
        HostError: its code does not run with another attention.
    """
    try:
        return model(**given, use_cache=False)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        what = f"the model does not run with another attention: {reason}"
        raise refused("AP411", what, where) from error


def check_counts(model: nn.Module, ids: torch.Tensor, where: str) -> None:
    """Every token must be in the cache of every attention call, in however large a piece it comes.

    Args:
        model: its attention silenced. ids: [1, T].

    Raises:
        HostError: how often a layer attends, if several times, depends on the number of tokens.
    """
    several = _counts(model, ids, where)
    if max(several.values(), default=0) < 2:
        return
    one = _counts(model, ids[:, :1], where)
    for path, module in model.named_modules():
        often = several[id(module)], one[id(module)]
        if often[0] != often[1]:
            what = f"{often[1]} times for 1 token, {often[0]} times for {ids.shape[1]}"
            raise refused("AP410", f"{path} ({type(module).__name__}) attends {what}", where)


def _counts(model: nn.Module, ids: torch.Tensor, where: str) -> Counter[int]:
    with noting(Run(getattr(model, "config", None))) as noted:
        run_silenced(model, where, input_ids=ids)
    return noted.asked


def _mask(mask_function: Callable[..., Any], **kwargs: Any) -> torch.Tensor:
    made = eager_mask(mask_function=mask_function, **kwargs)
    if active:
        active[-1].rules.append((made, mask_function))
    return made


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    if active:
        run, config = active[-1], getattr(module, "config", None)
        rule = next((r for m, r in run.rules if _same(m, attention_mask)), None)
        window, problem = (None, "a mask of its own making") if rule is None else window_of(rule)
        if asks_interface(module):  # proved causal when it was rewritten; its call has the window
            window, problem = kwargs.get("sliding_window"), None
        elif attention_mask is None:
            problem = "no mask"
        chunk = chunk_of(rule) if rule is not None and problem is not None else None
        run.asked[id(module)] += 1
        run.handed.append((type(module).__name__, (query, key, value)))
        if problem is not None or not asks_interface(module):
            kind, given = layer_key(module, config), kwargs.get("sliding_window")
            run.masks.append(Mask(kind, window, given, None if chunk else problem, chunk))
    batch, heads, length, _ = query.shape
    return query.new_zeros(batch, length, heads, value.shape[-1]), None


def _same(made: torch.Tensor, given: Any) -> bool:
    return given is made or getattr(given, "_base", None) is made


ALL_ATTENTION_FUNCTIONS.register(PROBE, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(PROBE, _mask)
