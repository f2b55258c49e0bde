"""The layout steps that rotary embeddings are made of, each as one operation.

rotate_half(x)   cat(-second half, first half)
rotate_pairs(x)  -x1, x0, -x3, x2, ...
repeat_pairs(x)  x0, x0, x1, x1, ...
pairs_as_complex(x), complex_as_pairs(z)   x0 + i x1, x2 + i x3, ..., and back
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx

from neuron_autoport.trace.arguments import Translator, bind, from_end, named, rank_of
from neuron_autoport.trace.ops import Op

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder

# Keys of the `getitem` operations that take every second element of the last dimension.
EVEN = "(Ellipsis, slice(None, None, 2))"
ODD = "(Ellipsis, slice(1, None, 2))"


def half_rotated(inputs: tuple[Any, ...]) -> tuple[Op, ...] | None:
    """x and the steps between, if joining these two gives rotate_half(x)."""
    return _rotated(inputs, _half)


def from_stack(source: Op, shape: tuple[int, ...]) -> tuple[str, Op, tuple[Op, ...]] | None:
    """(operation, x, steps between) if a stack of two, flattened to `shape`, is one of those above."""
    if source.attrs["dim"] != -1 or len(source.inputs) != 2:
        return None
    first, second = source.inputs
    if first is second and shape == (*first.shape[:-1], 2 * first.shape[-1]):
        return "repeat_pairs", first, (source,)
    turned = _rotated(source.inputs, _every_second)
    if turned is None or turned[0].shape != shape:
        return None
    return "rotate_pairs", turned[0], (*turned[1:], source)


def _rotated(inputs: tuple[Any, ...], part: Callable[[Any, int], Any]) -> tuple[Op, ...] | None:
    """x and the steps between, if the inputs are (-second, first) of the two parts of one x."""
    if len(inputs) != 2 or not named(inputs[0], "neg"):
        return None
    second, first = inputs[0].inputs[0], inputs[1]
    source = part(first, 0)
    if source is None or part(second, 1) is not source:
        return None
    return source, inputs[0], second, first


def _half(op: Any, which: int) -> Any:
    """What `op` is the first (0) or second (1) half of, along the last dimension."""
    if not named(op, "slice") or op.attrs["dim"] != -1:
        return None
    width = op.inputs[0].shape[-1]
    half = (op.attrs["start"], op.attrs["end"]) == (which * (width // 2), width // (2 - which))
    return op.inputs[0] if half and width % 2 == 0 else None


def _every_second(op: Any, which: int) -> Any:
    """What `op` is the even (0) or odd (1) elements of, along the last dimension."""
    known = named(op, "getitem") and op.attrs["key"] == (EVEN, ODD)[which]
    return op.inputs[0] if known else None


def _repeat_interleave(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input repeats dim", args, kwargs)
    value, dim = bound["input"], bound.get("dim")
    if bound["repeats"] != 2 or dim is None or from_end(dim, rank_of(value)) != -1:
        raise LookupError("repeated more than twice, or along another dimension")
    return b.op(node, "repeat_pairs", (value,))


def _as_complex(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    pairs, out = bind("input", args, kwargs)["input"], node.meta["val"]
    whole = pairs.inputs[0] if named(pairs, "view") else None
    if whole is None or whole.shape != (*out.shape[:-1], 2 * out.shape[-1]):
        raise LookupError("made of something else than neighbours of the last dimension")
    return b.op(node, "pairs_as_complex", (whole,), absorbed=(pairs,))


def _as_real(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    return b.op(node, "as_real", (bind("input", args, kwargs)["input"],))


def from_real(source: Op, shape: tuple[int, ...]) -> Op | None:
    """z, if its real view, flattened to `shape`, is complex_as_pairs(z)."""
    value: Op = source.inputs[0]
    return value if shape == (*value.shape[:-1], 2 * value.shape[-1]) else None


ROTATIONS: dict[str, Translator] = {
    "repeat_interleave": _repeat_interleave,
    "view_as_complex": _as_complex,
    "view_as_real": _as_real,
}
