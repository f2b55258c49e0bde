"""Small things the readers of routers and experts share: the refusal, and what counts as the same value."""

from __future__ import annotations

from typing import Any

import torch

from neuron_autoport.trace.inline import source_of
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.spans import Span


class UnknownRouting(Exception):
    """A router or an experts module computes what no known formula says.

    code: reason code. span: the expression that is not understood, innermost first to name.
    """

    def __init__(self, message: str, span: Span | None = None, code: str = "AP220") -> None:
        super().__init__(message)
        self.message, self.span, self.code = message, span, code


def unknown(op: Any, message: str) -> UnknownRouting:
    """The refusal for this operation."""
    span = op.spans[-1] if isinstance(op, Op) and op.spans else None
    return UnknownRouting(message, span)


def uncast(op: Any) -> Any:
    """`op` without views, and without casts from one kind of number to the same kind."""
    op = source_of(op)
    while isinstance(op, Op) and op.name == "cast" and _kind(op) == _kind(op.inputs[0]):
        op = source_of(op.inputs[0])
    return op


def _kind(op: Op) -> str:
    if op.dtype is None or op.dtype is torch.bool:
        return str(op.dtype)
    return "float" if op.dtype.is_floating_point else "integer"


def unbool(op: Any) -> Any:
    """A mask of zeros and ones without its cast to bool."""
    op = uncast(op)
    while isinstance(op, Op) and op.name == "cast" and torch.bool in (op.dtype, op.inputs[0].dtype):
        op = uncast(op.inputs[0])
    return op


def same(one: Any, other: Any) -> bool:
    """One value, but for views and for casts to a wider dtype, which change no number."""
    return _exact(one) is _exact(other)


def _exact(op: Any) -> Any:
    op = source_of(op)
    while isinstance(op, Op) and op.name == "cast" and _widens(op.inputs[0].dtype, op.dtype):
        op = source_of(op.inputs[0])
    return op


def _widens(before: torch.dtype | None, after: torch.dtype | None) -> bool:
    wide = {torch.float32: (torch.bfloat16, torch.float16), torch.float64: (torch.float32,)}
    return before in wide.get(after, ()) if after is not None else False
