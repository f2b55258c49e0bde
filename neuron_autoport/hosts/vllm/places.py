"""Rows that a layer counts as positions, `torch.arange(tokens)`, made the positions of the step's tokens.

Alone, a model sees one sequence from its start, and a token's row is its position. The rows of an engine's step are
tokens of several requests, each somewhere in its sequence. The call of `arange` in the layer's source is wrapped; in a
step the wrapper gives the positions instead. That this mends it, and changes nothing else, a small model shows: tokens
that change places, and some of them alone, must be treated as in the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from neuron_autoport.hosts.vllm.written_out.classes import make_class
from neuron_autoport.hosts.vllm.written_out.known import name_of
from neuron_autoport.hosts.vllm.written_out.region import Rewritten
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import BATCH, Port
from neuron_autoport.rewrite.apply import apply_edits
from neuron_autoport.rewrite.source import Edits, ForwardSource, NoSource
from neuron_autoport.trace.module_trace import ModuleTrace

_CALL, _MARK = "step_places", "positions of the step"
_steps: list[Tensor] = []

_LIBRARY = torch.library.Library("neuron_autoport", "FRAGMENT")
_LIBRARY.define("places(Tensor rows) -> Tensor")


@contextlib.contextmanager
def step(positions: Tensor) -> Iterator[None]:
    """Inside, the rows of a forward are tokens at these positions [T]."""
    _steps.append(positions)
    try:
        yield
    finally:
        _steps.pop()


def _places(rows: Tensor) -> Tensor:
    """The positions of the step, where there is one; the row numbers themselves else. A leaf for the compiler."""
    if not _steps:
        return rows.clone()
    if _steps[-1].numel() != rows.numel():
        raise ValueError(
            f"{rows.numel()} rows are counted in a step of {_steps[-1].numel()} tokens"
        )
    return _steps[-1].to(rows).clone()


_LIBRARY.impl("places", _places, "CPU")
torch.library.register_fake("neuron_autoport::places", torch.empty_like, lib=_LIBRARY)


class Placed:
    """Beside the original class: its row numbers are the positions of the step."""

    def step_places(self, rows: Tensor) -> Tensor:
        """rows [T], the numbers from 0, or what stands for them in a step."""
        made: Tensor = rows if rows.is_meta else torch.ops.neuron_autoport.places(rows)
        return made


class Placer:
    """Makes layers take positions where they counted rows, right after the model is built."""

    def __init__(self, classes: dict[type[nn.Module], type[nn.Module]]) -> None:
        self.classes = classes

    def __call__(self, model: Any, implementation: str | None) -> None:
        for module in model.modules():
            made = self.classes.get(type(module))
            module.__class__ = made or type(module)
        if implementation is not None:
            model.config._attn_implementation = implementation


def count_positions(source: ModelSource, port: Port, name: str) -> ModelSource | None:
    """The model with its class of this name counting positions; None if there is no count to wrap.

    Args:
        port: of the model, to read it from.
    """
    made: dict[type[nn.Module], Rewritten] = {}
    for plan in port.plans:
        cls = plan.trace.module_class
        if cls.__name__ != name or not (counts := _counts(plan.trace, port.tokens // BATCH)):
            continue
        text = _wrapped(plan.trace, counts)
        if text is None or made.setdefault(cls, text).text != text.text:
            return None
    if not made or source.prepare is not None:
        return None
    classes = {cls: make_class(cls, text, Placed) for cls, text in made.items()}
    return replace(source, prepare=Placer(classes))


def _counts(trace: ModuleTrace, tokens: int) -> list[fx.Node]:
    """The calls that number the rows."""
    return [
        node
        for node in trace.graph.nodes
        if node.op == "call_function"
        and name_of(node) == "arange"
        and not node.all_input_nodes
        and tuple(node.meta["val"].shape) == (tokens,)
    ]


def _wrapped(trace: ModuleTrace, counts: list[fx.Node]) -> Rewritten | None:
    """The forward with these calls wrapped; None if one stands elsewhere."""
    try:
        source = ForwardSource(trace.forward, trace.module_class, trace.reads)
    except NoSource:
        return None
    edits = Edits()
    for node in counts:
        spans = node.meta["spans"]
        call = source.expression_at(spans[0]) if len(spans) == 1 else None
        statement = source.statement_of(call) if call is not None else None
        if call is None or statement is None:
            return None
        edits.replaced[call] = f"self.{_CALL}({source.code(call)})"
        edits.comments[statement] = [_MARK]
    if "super(" in source.tree.code or hasattr(trace.module_class, _CALL):
        return None
    space = source.callable.__globals__
    return Rewritten(source.function.name.value, apply_edits(source, edits), space)
