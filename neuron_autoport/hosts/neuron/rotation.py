"""Rotary embeddings in a canonical graph: half-split over the whole last dimension, in either spelling."""

from __future__ import annotations

from typing import Any

from neuron_autoport.trace.ops import Op


def rotation(op: Op) -> tuple[Op, Op, Op] | None:
    """(x, cos, sin) if op is x rotated in halves over its whole last dimension, in either spelling."""
    if op.name == "add":
        for first, second in (op.inputs, op.inputs[::-1]):
            found = _turned(first, second)
            if found is not None:
                return found
    if op.name == "cat" and len(op.inputs) == 2:
        return _by_halves(*op.inputs)
    return None


def _turned(first: Any, second: Any) -> tuple[Op, Op, Op] | None:
    """x * cos + rotate_half(x) * sin."""
    for turned, sin in _factors(second):
        for x, cos in _factors(first):
            source = _under_casts(x)
            if _is_rotated(turned, source):
                return _with_inputs(source, cos, sin)
    return None


def _is_rotated(op: Op, source: Op) -> bool:
    """Is op cat(-high, low) of the halves of source?"""
    if op.name == "rotate_half":
        return _under_casts(op.inputs[0]) is source
    if op.name != "cat" or len(op.inputs) != 2:
        return False
    minus, low = (_under_casts(h) for h in op.inputs)
    if minus.name != "neg":
        return False
    high = _under_casts(minus.inputs[0])
    return _is_half(low, source, 0) and _is_half(high, source, 1)


def _by_halves(first: Op, second: Op) -> tuple[Op, Op, Op] | None:
    """cat(low * cos - high * sin, high * cos + low * sin)."""
    first, second = _under_casts(first), _under_casts(second)
    if first.name != "sub" or second.name != "add":
        return None
    for low, cos in _factors(first.inputs[0]):
        for high, sin in _factors(first.inputs[1]):
            source = _under_casts(low.inputs[0]) if low.name == "slice" else low
            fits = _is_half(low, source, 0) and _is_half(high, source, 1)
            if fits and _sum_of(second, (high, cos), (low, sin)):
                return _with_inputs(source, cos, sin)
    return None


def _sum_of(op: Op, one: tuple[Op, Op], other: tuple[Op, Op]) -> bool:
    """Is op the sum of these two products?"""
    return any(one in _factors(a) and other in _factors(b) for a, b in (op.inputs, op.inputs[::-1]))


def _with_inputs(source: Op, cos: Op, sin: Op) -> tuple[Op, Op, Op] | None:
    inputs = _input(cos), _input(sin)
    return None if inputs[0] is None or inputs[1] is None else (source, inputs[0], inputs[1])


def _factors(op: Any) -> list[tuple[Op, Op]]:
    op = _under_casts(op)
    if op.name != "mul" or not all(isinstance(x, Op) for x in op.inputs):
        return []
    a, b = (_under_casts(x) for x in op.inputs)
    return [(a, b), (b, a)]


def _is_half(op: Op, source: Op, which: int) -> bool:
    width = source.shape[-1] if source.shape else 0
    span = (0, width // 2) if which == 0 else (width // 2, width)
    return (
        op.name == "slice"
        and _under_casts(op.inputs[0]) is _under_casts(source)
        and (op.attrs.get("dim"), op.attrs.get("start"), op.attrs.get("end")) == (-1, *span)
    )


def _under_casts(op: Any) -> Any:
    while isinstance(op, Op) and op.name == "cast":
        op = op.inputs[0]
    return op


def under(op: Op) -> Op:
    """Below views and casts."""
    while op.name in ("view", "cast"):
        op = op.inputs[0]
    return op


def _input(op: Any) -> Op | None:
    found = under(op)
    return found if found.name == "input" else None
