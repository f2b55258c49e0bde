"""Pattern operations that are a view or a slice of a certain kind: what their operands are.

`unsqueeze(x, d)` is x with a dimension of one put in at place d; `first(x, n)` and `rest(x, n)` are the
first n elements of the last dimension and those after them; `even(x)` and `odd(x)` every second of them;
`cat(a, b)` joins along the last dimension; `heads_first(x)` is [B, T, N, D] as [B, N, T, D].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.rotations import EVEN, ODD

Operands = tuple[Any, ...]


def _unsqueeze(op: Op) -> Operands | None:
    if op.name != "view" or "unsqueeze" not in op.attrs:
        return None
    return op.inputs[0], op.attrs["unsqueeze"]


def _first(op: Op) -> Operands | None:
    if op.name != "slice" or op.attrs["dim"] != -1 or op.attrs["start"] != 0:
        return None
    return op.inputs[0], op.attrs["end"]


def _rest(op: Op) -> Operands | None:
    if op.name != "slice" or op.attrs["dim"] != -1:
        return None
    if op.attrs["end"] != op.inputs[0].shape[-1]:
        return None
    return op.inputs[0], op.attrs["start"]


def _cat(op: Op) -> Operands | None:
    return op.inputs if op.name == "cat" and op.attrs["dim"] == -1 else None


def _every_second(key: str) -> Callable[[Op], Operands | None]:
    def operands(op: Op) -> Operands | None:
        taken = op.name == "getitem" and op.attrs["key"] == key
        return op.inputs[:1] if taken else None

    return operands


def _heads_first(op: Op) -> Operands | None:
    turned = op.name == "permute" and tuple(op.attrs["order"]) == (-4, -2, -3, -1)
    return op.inputs if turned else None


# The canonical operation that each of them is.
WRITTEN_AS = {
    "unsqueeze": "view", "first": "slice", "rest": "slice", "cat": "cat", "even": "getitem",
    "odd": "getitem", "heads_first": "permute",
}  # fmt: skip
DERIVED: dict[str, Callable[[Op], Operands | None]] = {
    "unsqueeze": _unsqueeze,
    "first": _first,
    "rest": _rest,
    "cat": _cat,
    "even": _every_second(EVEN),
    "odd": _every_second(ODD),
    "heads_first": _heads_first,
}
