"""The function between the two products of an expert: act(gate) * up, clamped or not, or act alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_autoport.trace.canonical import ACTIVATIONS
from neuron_autoport.trace.ops import Op, is_float
from neuron_autoport.trace.rotations import EVEN, ODD
from neuron_autoport.trace.routing import uncast, unknown


@dataclass(frozen=True)
class Gate:
    """activation(gate) * (up + up_offset), or activation(x) where there is no gate.

    activation: canonical name; `swish` is x * sigmoid(alpha * x). order: where gate and up lie in the packed
    product: `gate_up` or `up_gate` halves, `interleaved` gate first; None without a gate.
    gate_max: upper limit of the gate before the activation; up_limit: limit of |up|; None if there is none.
    """

    activation: str
    order: str | None
    alpha: float = 1.0
    gate_max: float | None = None
    up_limit: float | None = None
    up_offset: float = 0.0

    @property
    def gated(self) -> bool:
        return self.order is not None

    @property
    def plain(self) -> bool:
        """No clamps, no offset."""
        return (self.alpha, self.gate_max, self.up_limit, self.up_offset) == (1.0, None, None, 0.0)

    def summary(self) -> str:
        """`act=silu, gate|up`."""
        words = {"gate_up": "gate|up", "up_gate": "up|gate", "interleaved": "gate, up interleaved"}
        act = f"act={self.activation}" + (f"({self.alpha:g}x)" if self.alpha != 1.0 else "")
        parts = [act, words[self.order] if self.order else "no gate"]
        if self.gate_max is not None:
            parts.append(f"gate ≤ {self.gate_max:g}")
        if self.up_limit is not None:
            parts.append(f"|up| ≤ {self.up_limit:g}")
        if self.up_offset:
            parts.append(f"up + {self.up_offset:g}")
        return ", ".join(parts)


def read_gate(op: Op) -> tuple[Gate, Op]:
    """(gate, packed product) of what the second product reads.

    Raises:
        UnknownRouting: it is no activation of one product.
    """
    op = uncast(op)
    name, alpha, inner = _activation(op)
    if name is not None and _part(inner) is None:
        return Gate(name, None, alpha), uncast(inner)
    if op.name != "mul":
        raise unknown(op, f"`{op.label}` stands between the two products of the experts")
    for one, other in (op.inputs, op.inputs[::-1]):
        name, alpha, inner = _activation(one)
        if name is None:
            continue
        gate, gate_low, gate_max = _clamped(inner)
        up, offset = _offset(other)
        up, low, high = _clamped(up)
        first, second = _part(gate), _part(up)
        if first is None or second is None or first[1] is not second[1]:
            continue
        order = {("first", "second"): "gate_up", ("second", "first"): "up_gate",
                 ("even", "odd"): "interleaved"}.get((first[0], second[0]))  # fmt: skip
        symmetric = (low is None and high is None) or (low is not None and low == -(high or 0))
        if order is None or gate_low is not None or not symmetric:
            continue
        return Gate(name, order, alpha, gate_max, high, offset), first[1]
    raise unknown(op, "gate and up are not the two halves of one product")


def _activation(op: Any) -> tuple[str | None, float, Any]:
    """(name, alpha, x) if op is an activation of x."""
    if not isinstance(op, Op):
        return None, 1.0, op
    op = uncast(op)
    if op.name in ACTIVATIONS:
        return op.name, 1.0, op.inputs[0]
    if op.name == "square" and uncast(op.inputs[0]).name == "relu":
        return "relu2", 1.0, uncast(op.inputs[0]).inputs[0]
    if op.name == "mul":
        for one, other in (op.inputs, op.inputs[::-1]):
            inner = uncast(other) if isinstance(other, Op) else None
            if inner is None or inner.name != "sigmoid":
                continue
            scaled = uncast(inner.inputs[0])
            by_number = scaled.name == "mul" and is_float(scaled.inputs[1])
            if by_number and uncast(scaled.inputs[0]) is uncast(one):
                return "swish", float(scaled.inputs[1]), one
    return None, 1.0, op


def _offset(op: Any) -> tuple[Any, float]:
    found = uncast(op) if isinstance(op, Op) else op
    if isinstance(found, Op) and found.name == "add" and is_float(found.inputs[1]):
        return found.inputs[0], float(found.inputs[1])
    return op, 0.0


def _clamped(op: Any) -> tuple[Any, float | None, float | None]:
    """(x, low, high) of clamp(x, low, high)."""
    found = uncast(op) if isinstance(op, Op) else op
    if isinstance(found, Op) and found.name == "clamp":
        low, high = found.inputs[1:]
        if all(v is None or is_float(v) for v in (low, high)):
            return found.inputs[0], low, high
    return op, None, None


def _part(op: Any) -> tuple[str, Op] | None:
    """(which, product) if op is one half of a product, or every second of its columns."""
    found = uncast(op) if isinstance(op, Op) else None
    if found is None:
        return None
    if found.name == "getitem" and found.attrs["key"] in (EVEN, ODD):
        return ("even" if found.attrs["key"] == EVEN else "odd"), uncast(found.inputs[0])
    if found.name == "slice" and found.attrs["dim"] == -1:
        whole = found.inputs[0].shape[-1]
        if (found.attrs["start"], found.attrs["end"]) == (0, whole // 2):
            return "first", uncast(found.inputs[0])
        if (found.attrs["start"], found.attrs["end"]) == (whole // 2, whole):
            return "second", uncast(found.inputs[0])
    return None
