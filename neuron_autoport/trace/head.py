"""What stands between the last hidden state and the logits, read from the graph of the whole model.

logits = soft_cap(scale * (h @ W + b)): constant factors before or after the head, and c * tanh(v / c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op, is_float

_TRANSPARENT = ("view", "cast", "slice", "getitem")


@dataclass(frozen=True)
class Head:
    """scale: constant factor on the logits. soft_cap: c of c * tanh(x / c), or None.

    scale_after_cap: the factor stands after the soft-cap. module: the linear map. reads: the module whose
    result it takes.
    """

    scale: float
    soft_cap: float | None
    scale_after_cap: float
    module: str
    reads: str


class UnknownHead(Exception):
    """The logits are computed in a way that is not a scaled, soft-capped linear map."""


def read_head(trace: ModuleTrace) -> Head:
    """The head of a traced causal language model.

    Raises:
        UnknownHead: with the operation that is not understood and its place.
    """
    if trace.end is not None:
        raise UnknownHead(f"the model was not traced to its end: {trace.end.message}")
    graph = canonical_graph(trace)
    if not graph.outputs:
        raise UnknownHead("the model returns no tensor")
    op, after, cap, scale = graph.outputs[0], 1.0, None, 1.0
    while True:
        if op.name in _TRANSPARENT:
            op = op.inputs[0]
        elif op.name == "module" and op.trace is not None and linear_of(op.trace) is not None:
            break
        elif (capped := _soft_cap(op)) is not None and cap is None:
            after, scale = scale, 1.0
            op, cap = capped
        elif (scaled := _scaled(op)) is not None:
            op, factor = scaled
            scale *= factor
        else:
            raise UnknownHead(f"{op.label} stands between head and logits{_place(op)}")
    facts = linear_of(op.trace)
    before, reads = _factor_before(op.inputs[0])
    if before != 1.0 and facts is not None and facts.bias:
        raise UnknownHead(f"the hidden state is scaled by {before:g} before a head with a bias")
    return Head(scale * before, cap, after, str(op.target), reads)


def _factor_before(op: Any) -> tuple[float, str]:
    """The constant factor on the hidden state, and the module that gives it."""
    factor = 1.0
    while isinstance(op, Op) and op.name != "module":
        if op.name in _TRANSPARENT:
            op = op.inputs[0]
        elif (scaled := _scaled(op)) is not None:
            op, one = scaled
            factor *= one
        else:
            raise UnknownHead(f"{op.label} stands between the base model and the head{_place(op)}")
    return factor, str(op.target) if isinstance(op, Op) else ""


def _scaled(op: Op) -> tuple[Op, float] | None:
    """(x, c) if op is x * c or x / c."""
    if op.name not in ("mul", "div"):
        return None
    left, right = op.inputs
    if isinstance(left, Op) and is_float(right):
        return left, float(right) if op.name == "mul" else 1.0 / float(right)
    if op.name == "mul" and isinstance(right, Op) and is_float(left):
        return right, float(left)
    return None


def _soft_cap(op: Op) -> tuple[Op, float] | None:
    """(x, c) if op is c * tanh(x / c)."""
    outer = _scaled(op)
    if outer is None or outer[0].name != "tanh":
        return None
    inner = _scaled(outer[0].inputs[0])
    if inner is None or abs(inner[1] * outer[1] - 1.0) > 1e-6:
        return None
    return inner[0], outer[1]


def _place(op: Op) -> str:
    return f" at {op.spans[0].short()}" if op.spans else ""
