"""A traced model as one graph of operations, for reading what it does.

Linear maps stay one operation each, and so do children that a rule names a norm, and experts. Everything else
is written out. What an operation is comes from the operations below it, never from a name.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch

from neuron_autoport.port import Port
from neuron_autoport.rules.match import Match
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.facts import LinearFacts, linear_of
from neuron_autoport.trace.inline import FlatBuilder
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.moe import experts_of
from neuron_autoport.trace.ops import Op, is_float

NORM_ROLES = ("rms_norm", "layer_norm")
SAME_VALUE = ("view", "cast")


class Flat:
    """The operations of a whole model in order; `index` of each is its place.

    Args:
        port: of the model. rules: of the library; those with a norm's role say which children are norms.
    """

    def __init__(self, port: Port, rules: tuple[Rule, ...]) -> None:
        self.model: Any = port.model
        self.roles = Roles(rules, port.without)
        self.experts = {call.trace for call in map(experts_of, _traces(port.trace)) if call}
        builder = FlatBuilder(port.trace, self._is_kept)
        self.outputs = [op for op in builder.outputs() if isinstance(op, Op)]
        self.ops = [op for op in builder.ops if op.name != "unknown:results"]
        for index, op in enumerate(self.ops):
            op.index = index

    def _is_kept(self, trace: ModuleTrace) -> bool:
        return trace in self.experts or self._norm_of(trace) is not None

    def _norm_of(self, trace: ModuleTrace) -> tuple[Rule, Match] | None:
        found = (self.roles.of(trace, role) for role in NORM_ROLES)
        return next((f for f in found if f is not None), None)

    def norm(self, op: Any) -> tuple[Rule, Match] | None:
        """The rule that names this call a norm, and its match."""
        if not isinstance(op, Op) or op.name != "module" or op.trace is None:
            return None
        return self._norm_of(op.trace)

    def is_experts(self, op: Op) -> bool:
        """Is this the call of a block's experts?"""
        return op.name == "module" and op.trace in self.experts

    def constant(self, value: Any) -> float | None:
        """A number, or the value of a buffer with one element; None if it is neither."""
        if is_float(value):
            return float(value)
        value = bare(value) if isinstance(value, Op) else value
        if not isinstance(value, Op) or value.name != "param" or math.prod(value.shape) != 1:
            return None
        filled = self.buffer(str(value.target))
        return None if filled is None else float(filled.reshape(()))

    def scaled(self, op: Any) -> tuple[Op, float] | None:
        """(x, c) if `op` is x times or divided by a constant c."""
        if not isinstance(op, Op) or op.name not in ("mul", "div"):
            return None
        left, right = op.inputs
        for value, factor in ((left, right), (right, left))[: 1 if op.name == "div" else 2]:
            number = self.constant(factor)
            if isinstance(value, Op) and number:
                return value, number if op.name == "mul" else 1.0 / number
        return None

    def buffer(self, path: str) -> torch.Tensor | None:
        """The value a buffer has in a real model, computed by the model's own initialization.

        The traced model is on the meta device and holds no values. Its owner is copied with an empty buffer on the
        CPU, which the model fills as when it is loaded; None if it does not.
        """
        owner_path, _, name = path.rpartition(".")
        try:
            owner = self.model.get_submodule(owner_path)
        except AttributeError:
            return None
        known = owner._buffers.get(name)
        if known is None or not known.is_floating_point():
            return None
        clone = copy.copy(owner)
        clone._buffers = {
            n: None if b is None else torch.full(b.shape, math.nan, dtype=torch.float32)
            for n, b in owner._buffers.items()
        }
        try:
            self.model._init_weights(clone)
        except (AttributeError, TypeError, ValueError, RuntimeError, KeyError):
            return None  # code of the model's own; the value stays unknown and is said to be
        filled = clone._buffers[name]
        return None if filled is None or bool(torch.isnan(filled).any()) else filled


def _traces(trace: ModuleTrace) -> list[ModuleTrace]:
    return list(dict.fromkeys(part for _, part in trace.walk()))


def linear(op: Any) -> LinearFacts | None:
    """What linear map an operation is, or None."""
    if isinstance(op, Op) and op.name == "module" and op.trace is not None:
        return linear_of(op.trace)
    return None


def bare(op: Any) -> Any:
    """The value without changes of shape and dtype."""
    while isinstance(op, Op) and op.name in SAME_VALUE:
        op = op.inputs[0]
    return op


def between(op: Op, low: int) -> list[Op]:
    """`op` and all it is computed from that comes after place `low`, in order."""
    seen, todo = set[Op](), [op]
    while todo:
        current = todo.pop()
        if current not in seen and current.index > low:
            seen.add(current)
            todo += current.operands()
    return sorted(seen, key=lambda o: o.index)


def reaches(op: Op, target: Op) -> bool:
    """Is `op` computed from `target`?"""
    return target in between(op, target.index - 1)


def down_to_linears(starts: list[Any], low: int) -> Iterator[Op]:
    """Operations back from some values to the nearest linear maps, those included; the nearest first."""
    seen, todo = set[Op](), [v for v in starts if isinstance(v, Op)]
    while todo:
        op = todo.pop(0)
        if op in seen or op.index <= low:
            continue
        seen.add(op)
        yield op
        if linear(op) is None:
            todo += op.operands()
