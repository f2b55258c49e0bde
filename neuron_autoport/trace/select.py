"""Translators of operations that choose, place or mask elements: top-k, gather, scatter, masked fill.

They are what a router is made of. As in `translate.py`: dimensions from the end, one name per operation,
LookupError for arguments that are not expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from neuron_autoport.trace.arguments import Translator, bind, from_end, rank_of
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.shaping import cast, join

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder


def _topk(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """The k largest along `dim`: (values, indices). Whether they are sorted is kept."""
    bound = bind("input k dim largest sorted", args, kwargs)
    value, largest = bound["input"], bool(bound.get("largest", True))
    dim = from_end(bound.get("dim", -1), rank_of(value))
    return b.op(
        node, "topk", (value,), k=bound["k"], dim=dim, largest=largest,
        sorted=bool(bound.get("sorted", True)),
    )  # fmt: skip


def _gather(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input dim index", args, kwargs)
    value, index = bound["input"], bound["index"]
    return b.op(node, "gather", (value, index), dim=from_end(bound["dim"], rank_of(value)))


def _take_along_dim(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input indices dim", args, kwargs)
    value, index = bound["input"], bound["indices"]
    if bound.get("dim") is None or index.shape[:-1] != value.shape[:-1]:
        raise LookupError("take_along_dim over a flat or broadcast index")
    return b.op(node, "gather", (value, index), dim=from_end(bound["dim"], rank_of(value)))


def _scatter(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """`src` placed at `index`; with a reduction it is another operation."""
    bound = bind("input dim index src", args, kwargs)
    if bound.get("reduce") is not None:
        raise LookupError("scatter with a reduction")
    value, source = bound["input"], bound["src"] if "src" in bound else bound["value"]
    dim = from_end(bound["dim"], rank_of(value))
    return b.op(node, "scatter", (value, bound["index"], source), dim=dim)


def _masked_fill(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input mask value", args, kwargs)
    return b.op(node, "masked_fill", (bound["input"], bound["mask"], bound["value"]))


def _filled(value: float | None) -> Translator:
    """`zeros_like`, `ones_like`, `full_like`: one number in the shape of a tensor."""

    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = bind("input fill_value" if value is None else "input", args, kwargs)
        return b.op(node, "full", (), value=bound["fill_value"] if value is None else value)

    return translate


def _zeros(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    return b.op(node, "full", (), value=0)


def _expand(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """Repeated along dimensions of size one; which ones follows from the two shapes."""
    source = bind("input", args, kwargs)["input"]
    return b.op(node, "expand", (source,))


def _clamp(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """min and max: numbers, tensors or None."""
    name = getattr(node.target, "__name__", "").strip("_")
    names = {"clamp_min": "input min", "clamp_max": "input max"}.get(name, "input min max")
    bound = bind(names, args, kwargs)
    return b.op(node, "clamp", (bound["input"], bound.get("min"), bound.get("max")))


def _max(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """`max` along one dimension is a pair (values, indices); `amax` only the values."""
    bound = bind("input dim keepdim", args, kwargs)
    value, dim = bound["input"], bound.get("dim")
    if not isinstance(dim, int):
        raise LookupError("max of everything, or of two tensors")
    name = "amax" if isinstance(node.meta.get("val"), torch.Tensor) else "max"
    keepdim = bool(bound.get("keepdim", False))
    return b.op(node, name, (value,), dim=from_end(dim, rank_of(value)), keepdim=keepdim)


def _along(name: str) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = bind("input dim", args, kwargs)
        value = bound["input"]
        return b.op(node, name, (value,), dim=from_end(bound["dim"], rank_of(value)))

    return translate


def _invert(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    return b.op(node, "invert", (bind("input", args, kwargs)["input"],))


def _grouped_mm(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """Rows [S, in] sorted by expert times weights [E, in, out]; `offs` ends each expert's rows."""
    bound = bind("input mat2 offs bias out_dtype", args, kwargs)
    if bound.get("bias") is not None or bound.get("out_dtype") is not None:
        raise LookupError("grouped_mm with a bias or another dtype")
    return b.op(node, "grouped_mm", (bound["input"], bound["mat2"], bound["offs"]))


SELECT: dict[str, Translator] = {
    "topk": _topk, "gather": _gather, "take_along_dim": _take_along_dim, "scatter": _scatter,
    "masked_fill": _masked_fill, "zeros_like": _filled(0), "ones_like": _filled(1),
    "full_like": _filled(None), "zeros": _zeros, "new_zeros": _zeros, "expand": _expand,
    "expand_as": _expand, "clamp": _clamp, "clip": _clamp, "clamp_min": _clamp, "clamp_max": _clamp,
    "max": _max, "amax": _max, "log_softmax": _along("log_softmax"), "invert": _invert,
    "bitwise_not": _invert, "logical_not": _invert, "grouped_mm": _grouped_mm,
    **dict.fromkeys(("bool", "long", "int", "short", "char", "byte"), cast),
    "concat": join, "concatenate": join,
}  # fmt: skip
