"""Questions about operations that a pattern looks through: layout steps, casts, and what lies between two values."""

from __future__ import annotations

import math
from typing import Any

import torch

from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.ops import Op

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def keeps_last(view: Op) -> bool:
    """Does a view leave the last dimension alone? Else what follows works along another axis."""
    before = view.inputs[0].shape
    return bool(view.attrs.get("same")) or before[-1:] == view.shape[-1:]


def between_floats(cast: Op) -> bool:
    """A cast to an integer, or to a narrow float, computes something: it rounds."""
    return cast.dtype in _FLOATS and cast.inputs[0].dtype in _FLOATS


def spreads_both(op: Op) -> bool:
    """Is each of two operands broadcast, as in an outer product?"""
    sizes = [math.prod(v.shape) for v in op.inputs if isinstance(v, Op)]
    return len(sizes) == 2 and math.prod(op.shape) > max(sizes)


def no_linear_between(value: Any, source: Any) -> bool:
    """Is `value` computed from `source` on a way without a linear map or another product?"""
    todo, seen = [value], set[Op]()
    while todo:
        op = todo.pop()
        if op is source:
            return True
        if not isinstance(op, Op) or op in seen or op.name in ("linear", "matmul", "attention"):
            continue
        seen.add(op)
        if op.name == "getitem" or (op.name == "permute" and op.attrs["order"][-1] != -1):
            continue  # not all heads, or the channels of a head are no longer side by side
        if op.name == "module" and op.trace is not None and linear_of(op.trace) is not None:
            continue
        todo += op.operands()
    return False
