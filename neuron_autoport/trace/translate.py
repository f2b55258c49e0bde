"""One small translator per torch name: from a node of a traced graph to a canonical op.

Here those of products, norms and attention; the others are in `arithmetic.py`, `shaping.py`, `rotations.py`
and `select.py`. A translator may raise LookupError for arguments it does not know; the node is then an
unknown operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from neuron_autoport.trace.arguments import Translator, bind, from_end, named, rank_of
from neuron_autoport.trace.arithmetic import ARITHMETIC
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.rotations import ROTATIONS
from neuron_autoport.trace.shaping import SHAPING

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder


def _attention(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    return b.op(node, "attention", tuple(args[:3]), mask=args[3], **kwargs)


def _sdpa(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """Torch's own attention, called directly; its result is [B, N, T, D], unlike the interface's."""
    bound = bind("query key value attn_mask dropout_p is_causal", args, kwargs)
    inputs = tuple(bound.pop(k) for k in ("query", "key", "value"))
    return b.op(node, "sdpa", inputs, mask=bound.pop("attn_mask", None), **bound)


def _linear(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input weight bias", args, kwargs)
    inputs = (bound["input"], bound["weight"], bound.get("bias"))
    return b.op(node, "linear", inputs, layout="out_in")


def _addmm(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input mat1 mat2", args, kwargs)
    if bound.get("beta", 1) != 1 or bound.get("alpha", 1) != 1:
        return b.op(node, "unknown:addmm", tuple(args))
    inputs = (bound["mat1"], bound["mat2"], bound["input"])
    return b.op(node, "linear", inputs, layout="in_out")


def _matmul(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """A product with a matrix of the module is a linear map, also with the matrix transposed."""
    bound = bind("input other", args, kwargs)
    value, other = bound["input"], bound["other"]
    if named(other, "param") and len(other.shape) == 2:
        return b.op(node, "linear", (value, other, None), layout="in_out")
    turned = named(other, "permute") and other.attrs["order"] == (-1, -2)
    if turned and named(other.inputs[0], "param"):
        weight = other.inputs[0]
        return b.op(node, "linear", (value, weight, None), layout="out_in", absorbed=(other,))
    return b.op(node, "matmul", (value, other))


def _rms_norm(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input normalized_shape weight eps", args, kwargs)
    name = "rms_norm" if len(bound["normalized_shape"]) == 1 else "unknown:rms_norm"
    return b.op(node, name, (bound["input"], bound.get("weight"), bound.get("eps")))


def _embedding(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input weight", args, kwargs)
    return b.op(node, "embedding", (bound["input"], bound["weight"]))


def _layer_norm(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input normalized_shape weight bias eps", args, kwargs)
    inputs = (bound["input"], bound.get("weight"), bound.get("bias"), bound.get("eps", 1e-5))
    name = "layer_norm" if len(bound["normalized_shape"]) == 1 else "unknown:layer_norm"
    return b.op(node, name, inputs)


def _simple(name: str, arity: str) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = bind(arity, args, kwargs)
        return b.op(node, name, tuple(bound.get(k) for k in arity.split()))

    return translate


def _softmax(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input dim", args, kwargs)
    dim = from_end(bound.get("dim"), rank_of(bound["input"]))
    return b.op(node, "softmax", (bound["input"],), dim=dim, dtype=bound.get("dtype"))


TRANSLATE: dict[str, Translator] = {
    **ARITHMETIC, **SHAPING, **ROTATIONS,
    "attention": _attention, "scaled_dot_product_attention": _sdpa,
    "linear": _linear, "addmm": _addmm, "matmul": _matmul,
    "bmm": _simple("matmul", "input mat2"),
    "baddbmm": _simple("baddbmm", "input batch1 batch2"),
    "rms_norm": _rms_norm, "layer_norm": _layer_norm, "embedding": _embedding,
    "softmax": _softmax, "special_softmax": _softmax, "where": _simple("where", "a b c"),
}  # fmt: skip
