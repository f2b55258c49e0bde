"""Attention wherever it stands: the interface's one call, or written out as two products and a softmax."""

from __future__ import annotations

from typing import Any

from neuron_autoport.trace.ops import Op

# Between the scores, the softmax and the second product: scales, masks, caps, casts, layout.
_BETWEEN = frozenset(
    {"add", "sub", "mul", "div", "neg", "tanh", "view", "permute", "cast", "where", "getitem", "slice",
     "masked_fill", "clamp", "clamp_min", "expand", "dropout", "max", "maximum", "nan_to_num"}
)  # fmt: skip
_PRODUCTS = frozenset({"matmul", "baddbmm"})
# Operations whose result is that of an attention.
_WHOLE = frozenset({"attention", "sdpa"})
RESULTS = _WHOLE | {"matmul"}


def attention_operands(op: Op) -> tuple[Any, Any, Any] | None:
    """Query, key and value of an attention whose result is `op`; None if it is none.

    Written out, that is `softmax(query @ key.T ...) @ value`, with anything elementwise in between.
    """
    if op.name in _WHOLE:
        return op.inputs[0], op.inputs[1], op.inputs[2]
    if op.name != "matmul" or not all(isinstance(v, Op) for v in op.inputs):
        return None
    softmax = _reach(op.inputs[0], "softmax")
    scores = _reach(softmax.inputs[0], *_PRODUCTS) if softmax is not None else None
    if scores is None or softmax is None or softmax.attrs.get("dim") != -1:
        return None
    query, key = scores.inputs[-2:]
    return query, key, op.inputs[1]


def _reach(start: Any, *names: str) -> Op | None:
    """The nearest operation of one of these names that elementwise steps lead back to."""
    todo, seen = [start], set[Op]()
    while todo:
        op = todo.pop(0)
        if not isinstance(op, Op) or op in seen:
            continue
        seen.add(op)
        if op.name in names:
            return op
        if op.name.removeprefix("unknown:") in _BETWEEN:
            todo += list(op.operands())
    return None
