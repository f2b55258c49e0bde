"""Translators of sums, products, powers, reductions and elementwise functions.

A product of unlike dtypes gets its implicit cast written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from neuron_autoport.trace.arguments import Translator, bind, from_end, named, rank_of
from neuron_autoport.trace.ops import Op, is_float

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder


def _binary(name: str, reverse: bool = False) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = bind("input other", args, kwargs)
        left, right = bound["input"], bound["other"]
        if reverse:
            left, right = right, left
        if bound.get("alpha", 1) != 1 or bound.get("rounding_mode") is not None:
            return b.op(node, f"unknown:{name}", (left, right))
        if name == "mul" and left is right and isinstance(left, Op):
            return b.op(node, "square", (left,))
        for one, other in ((left, right), (right, left)):
            if name == "mul" and named(one, "sigmoid") and one.inputs[0] is other:
                return b.op(node, "silu", (other,), absorbed=(one,))
        if name == "add" and (whole := _with_bias(b, node, left, right)) is not None:
            return whole
        if name == "div" and is_float(left) and left == 1 and named(right, "sqrt"):
            return b.op(node, "rsqrt", right.inputs, absorbed=(right,))
        if name == "div" and is_float(left) and left == 1:
            return b.op(node, "reciprocal", (right,))
        if name == "div" and isinstance(left, Op) and named(right, "sqrt"):
            return b.op(node, "mul", _promoted(b, node, left, _inverse_root(b, node, right)))
        return b.op(node, name, _promoted(b, node, left, right))

    return translate


def _inverse_root(b: Builder, node: fx.Node, root: Op) -> Op:
    """rsqrt(v) of a division by sqrt(v), which has no text of its own."""
    inverse = b.op(node, "rsqrt", root.inputs, absorbed=(root,), implicit=True)
    inverse.shape, inverse.dtype = root.shape, root.dtype
    return inverse


def _promoted(b: Builder, node: fx.Node, left: Any, right: Any) -> tuple[Any, Any]:
    value = node.meta.get("val")
    dtype = value.dtype if isinstance(value, torch.Tensor) else None
    both = [left, right]
    for i, side in enumerate(both):
        if isinstance(side, Op) and side.dtype is not None and side.dtype != dtype and dtype:
            both[i] = b.cast(node, side, dtype)
    return both[0], both[1]


def _with_bias(b: Builder, node: fx.Node, left: Any, right: Any) -> Op | None:
    """`x @ W.T + b` as one linear map."""
    for product, bias in ((left, right), (right, left)):
        known = named(product, "linear") and named(bias, "param")
        if not known or product.inputs[2] is not None:
            continue
        if bias.shape == product.shape[-1:] and bias.dtype == product.dtype:
            inputs, layout = (*product.inputs[:2], bias), product.attrs["layout"]
            absorbed = (product, *product.absorbed)
            return b.op(node, "linear", inputs, layout=layout, absorbed=absorbed)
    return None


def _unary(name: str) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        return b.op(node, name, (bind("input", args, kwargs)["input"],))

    return translate


def _pow(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input exponent", args, kwargs)
    base, exponent = bound["input"], bound["exponent"]
    names = {2: "square", -0.5: "rsqrt", 0.5: "sqrt", -1: "reciprocal"}
    if is_float(exponent) and exponent in names and isinstance(base, Op):
        return b.op(node, names[exponent], (base,))
    return b.op(node, "pow", (base, exponent))


def _reciprocal(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    value = bind("input", args, kwargs)["input"]
    if named(value, "sqrt"):
        return b.op(node, "rsqrt", value.inputs, absorbed=(value,))
    return b.op(node, "reciprocal", (value,))


def _reduce(name: str) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = bind("input dim keepdim", args, kwargs)
        value = bound["input"]
        if bound.get("dtype") not in (None, value.dtype):
            value = b.cast(node, value, bound["dtype"])
        dim = from_end(bound.get("dim"), rank_of(value))
        dim = dim[0] if isinstance(dim, tuple) and len(dim) == 1 else dim
        return b.op(node, name, (value,), dim=dim, keepdim=bool(bound.get("keepdim", False)))

    return translate


def _gelu(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input", args, kwargs)
    name = "gelu_tanh" if bound.get("approximate", "none") == "tanh" else "gelu"
    return b.op(node, name, (bound["input"],))


ARITHMETIC: dict[str, Translator] = {
    **{n: _binary(n) for n in ("add", "sub", "mul", "div")},
    "multiply": _binary("mul"), "subtract": _binary("sub"),
    "divide": _binary("div"), "true_divide": _binary("div"), "truediv": _binary("div"),
    "radd": _binary("add", True), "rmul": _binary("mul", True), "rsub": _binary("sub", True),
    "rtruediv": _binary("div", True), "rdiv": _binary("div", True),
    **{n: _unary(n) for n in ("neg", "sqrt", "rsqrt", "exp", "tanh", "sigmoid", "silu", "square",
                              "relu", "abs", "log", "cos", "sin", "softplus", "erf")},
    "special_expit": _unary("sigmoid"), "special_erf": _unary("erf"),
    "pow": _pow, "reciprocal": _reciprocal, "gelu": _gelu,
    "mean": _reduce("mean"), "sum": _reduce("sum"),
}  # fmt: skip
