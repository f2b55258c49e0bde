"""What every class of a model is called with when the runner drives it: read from two runs on meta.

A prefill-shaped and a decode-shaped call go through the base model with an attention that only keeps the
shapes. An argument that was the same plain value in every call of a class is a constant for the exported
source; one that was always a tensor is known not to be None.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neuron_autoport.hosts.neuron.probe import base_model, use_experts
from neuron_autoport.hosts.neuron.rope import freeze_rope
from neuron_autoport.models.build import meta_model
from neuron_autoport.models.source import ModelSource

SHAPES_ONLY = "neuron_autoport_shapes_only"
CALLS = ((1, 7), (3, 1))  # requests, tokens: a prefill and a decode step
PLAIN = (bool, int, float, str, type(None))


class Varying:
    """An argument of several values; `SOMETHING` is one that was never None."""


VARYING, SOMETHING = Varying(), Varying()


@dataclass
class ClassCalls:
    """How one class was called.

    arguments: by parameter name, a plain value, SOMETHING or VARYING. more: the same of what went into
    `**kwargs`. parameters: of its forward, in order. instances: its modules.
    """

    cls: type[nn.Module]
    parameters: dict[str, inspect.Parameter]
    arguments: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    instances: list[nn.Module] = field(default_factory=list)

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take in one call."""
        if not any(module is m for m in self.instances):
            self.instances.append(module)
        bound = inspect.Signature(list(self.parameters.values())).bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            kind = self.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                for key, given in value.items():
                    _merge(self.more, key, given)
            elif kind is not inspect.Parameter.VAR_POSITIONAL:
                _merge(self.arguments, name, value)


def _merge(known: dict[str, Any], name: str, value: Any) -> None:
    seen = value if isinstance(value, PLAIN) else SOMETHING
    if name not in known:
        known[name] = seen
        return
    before = known[name]
    same = before is seen if isinstance(before, Varying) or seen is SOMETHING else before == seen
    if same and type(before) is type(seen):
        return
    known[name] = SOMETHING if before is not None and seen is not None else VARYING


@dataclass(frozen=True, eq=False)
class Recorded:
    """A base model on the meta device and how its classes are called."""

    model: Any
    base: nn.Module
    calls: dict[type[nn.Module], ClassCalls]


def record_calls(source: ModelSource) -> Recorded:
    """Run the base model of a configuration on the meta device and note all calls of modules."""
    model = meta_model(source, attn_implementation=SHAPES_ONLY)
    use_experts(model)
    freeze_rope(model)
    base = base_model(model)
    calls: dict[type[nn.Module], ClassCalls] = {}
    with _noted(base, calls), torch.no_grad():
        for shape in CALLS:
            ids = torch.zeros(shape, dtype=torch.long, device="meta")
            base(input_ids=ids, position_ids=ids, use_cache=False)
    return Recorded(model, base, calls)


@contextmanager
def _noted(base: nn.Module, calls: dict[type[nn.Module], ClassCalls]) -> Iterator[None]:
    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        cls = type(module)
        if cls not in calls:
            given = dict(inspect.signature(cls.forward).parameters)
            given.pop(next(iter(given)))  # self
            calls[cls] = ClassCalls(cls, given)
        calls[cls].note(module, args, kwargs)

    handles = [
        m.register_forward_pre_hook(note, with_kwargs=True)
        for m in base.modules()
        if not type(m).__module__.startswith("torch.")
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _shapes_only(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    batch, heads, length, _width = query.shape
    return query.new_empty(batch, length, heads, value.shape[-1]), None


ALL_ATTENTION_FUNCTIONS.register(SHAPES_ONLY, _shapes_only)
