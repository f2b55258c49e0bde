"""One small translator per torch name: from a node of a traced graph to a canonical op.

A product of unlike dtypes gets its implicit cast written out. A translator may raise LookupError for
arguments it does not know; the node is then an unknown operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from neuron_autoport.trace.ops import Op, is_float

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder

Translator = Callable[["Builder", fx.Node, list[Any], dict[str, Any]], Op]


def _bind(names: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments under one set of names; NumPy's names are torch's own."""
    known = names.split()
    named = {_NUMPY[k] if _NUMPY.get(k) in known else k: v for k, v in kwargs.items()}
    return dict(zip(known, args, strict=False)) | named


_NUMPY = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}


def _dim(node: fx.Node, value: Any, rank: int) -> Any:
    """A dimension counted from the end."""
    if isinstance(value, list | tuple):
        return tuple(_dim(node, v, rank) for v in value)
    return value - rank if isinstance(value, int) and value >= 0 else value


def _rank(value: Any) -> int:
    return len(value.shape) if isinstance(value, Op) else 0


def _binary(name: str, reverse: bool = False) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = _bind("input other", args, kwargs)
        left, right = bound["input"], bound["other"]
        if reverse:
            left, right = right, left
        if bound.get("alpha", 1) != 1 or bound.get("rounding_mode") is not None:
            return b.op(node, f"unknown:{name}", (left, right))
        if name == "mul" and left is right and isinstance(left, Op):
            return b.op(node, "square", (left,))
        for one, other in ((left, right), (right, left)):
            if name == "mul" and _is(one, "sigmoid") and one.inputs[0] is other:
                return b.op(node, "silu", (other,), absorbed=(one,))
        if name == "add" and (whole := _with_bias(b, node, left, right)) is not None:
            return whole
        if name == "div" and is_float(left) and left == 1 and _is(right, "sqrt"):
            return b.op(node, "rsqrt", right.inputs, absorbed=(right,))
        if name == "div" and is_float(left) and left == 1:
            return b.op(node, "reciprocal", (right,))
        if name == "div" and isinstance(left, Op) and _is(right, "sqrt"):
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


def _is(value: Any, name: str) -> bool:
    return isinstance(value, Op) and value.name == name


def _unary(name: str) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        return b.op(node, name, (_bind("input", args, kwargs)["input"],))

    return translate


def _pow(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input exponent", args, kwargs)
    base, exponent = bound["input"], bound["exponent"]
    names = {2: "square", -0.5: "rsqrt", 0.5: "sqrt", -1: "reciprocal"}
    if is_float(exponent) and exponent in names and isinstance(base, Op):
        return b.op(node, names[exponent], (base,))
    return b.op(node, "pow", (base, exponent))


def _reciprocal(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    value = _bind("input", args, kwargs)["input"]
    if _is(value, "sqrt"):
        return b.op(node, "rsqrt", value.inputs, absorbed=(value,))
    return b.op(node, "reciprocal", (value,))


def _reduce(name: str) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = _bind("input dim keepdim", args, kwargs)
        value = bound["input"]
        if bound.get("dtype") not in (None, value.dtype):
            value = b.cast(node, value, bound["dtype"])
        dim = _dim(node, bound.get("dim"), _rank(value))
        dim = dim[0] if isinstance(dim, tuple) and len(dim) == 1 else dim
        return b.op(node, name, (value,), dim=dim, keepdim=bool(bound.get("keepdim", False)))

    return translate


def _gelu(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input", args, kwargs)
    name = "gelu_tanh" if bound.get("approximate", "none") == "tanh" else "gelu"
    return b.op(node, name, (bound["input"],))


def _cast(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """Every way to change a dtype; one that changes none is a plain `view`."""
    value, out = args[0], node.meta["val"]
    if value.dtype == out.dtype:
        return b.op(node, "view", (value,), same=True)
    return b.op(node, "cast", (value,), dtype=out.dtype)


def _view(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    source, out = args[0], node.meta["val"]
    if source.dtype != out.dtype:  # x.view(dtype) reads the same bits as other numbers
        return b.op(node, "unknown:view_dtype", (source,))
    shape = tuple(out.shape)
    if _is(source, "stack") and source.attrs["dim"] == -1:
        turned = _rotated(source.inputs, _each_other)
        if turned is not None and turned[0].shape == shape:
            return b.op(node, "rotate_pairs", turned[:1], absorbed=(*turned[1:], source))
    extra = {}
    if getattr(node.target, "__name__", "") == "unsqueeze":
        dim = _bind("input dim", args, kwargs)["dim"]
        extra = {"unsqueeze": dim % len(shape)}
    return b.op(node, "view", (source,), same=source.shape == shape, **extra)


def _dropout(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input p training", args, kwargs)
    if bound.get("training", True) and bound.get("p", 0.5):
        return b.op(node, "unknown:dropout", (bound["input"],))
    return b.op(node, "view", (bound["input"],), same=True)


_AXES = {"axis0": "dim0", "axis1": "dim1"}


def _permute(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    name = getattr(node.target, "__name__", "")
    source = _bind("input", args, kwargs)["input"]
    rank = _rank(source)
    order = list(range(rank))
    if name in ("transpose", "swapaxes"):
        bound = _bind("input dim0 dim1", args, {_AXES.get(k, k): v for k, v in kwargs.items()})
        i, j = bound["dim0"], bound["dim1"]
        order[i], order[j] = order[j], order[i]
    elif name == "permute":
        dims = kwargs["dims"] if "dims" in kwargs else args[1]
        order = [d % rank for d in (dims if isinstance(dims, tuple) else args[1:])]
    else:
        order = order[:-2] + order[-2:][::-1]
    return b.op(node, "permute", (source,), order=tuple(d - rank for d in order))


def _pieces(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """chunk and split: a tuple of slices; each part follows as a `getitem` node."""
    bound = _bind("input sizes dim", args, kwargs)
    bound["input"] = bound.pop("tensor", bound.get("input"))
    dim = _dim(node, bound.get("dim", 0), _rank(bound["input"]))
    return b.op(node, "pieces", (bound["input"],), dim=dim)


def _narrow(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input dim start length", args, kwargs)
    source, start, length = bound["input"], bound["start"], bound["length"]
    if isinstance(start, Op):
        return b.op(node, "unknown:narrow", (source, start))
    dim = _dim(node, bound["dim"], _rank(source))
    start = start % source.shape[dim] if start < 0 else start
    return b.op(node, "slice", (source,), dim=dim, start=start, end=start + length)


def _getitem(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    source, key = args
    if _is(source, "pieces") and isinstance(key, int):
        dim = source.attrs["dim"]
        parts = source.node.meta["val"]
        start = sum(p.shape[dim] for p in parts[:key])
        end = start + parts[key].shape[dim]
        return b.op(node, "slice", (source.inputs[0],), dim=dim, start=start, end=end)
    if isinstance(source, Op) and source.shape:
        found = _last_dim_slice(key, _rank(source))
        if found is not None:
            start, end, _ = slice(*found).indices(source.shape[-1])
            return b.op(node, "slice", (source,), dim=-1, start=start, end=end)
    return b.op(node, "getitem", (source, *_values_in(key)), key=str(key))


def _values_in(key: Any) -> list[Op]:
    """Values that an index depends on."""
    if isinstance(key, slice):
        key = (key.start, key.stop, key.step)
    if isinstance(key, list | tuple):
        return [v for part in key for v in _values_in(part)]
    return [key] if isinstance(key, Op) else []


def _last_dim_slice(key: Any, rank: int) -> tuple[Any, Any] | None:
    """(start, stop) if `key` cuts the last dimension only, in steps of one."""
    keys = key if isinstance(key, tuple) else (key,)
    if not keys or not isinstance(keys[-1], slice) or keys[-1].step not in (None, 1):
        return None
    if any(isinstance(end, Op) for end in (keys[-1].start, keys[-1].stop)):
        return None  # where it is cut is the value of a tensor
    whole = all(k is ... or k == slice(None) for k in keys[:-1])
    reaches_last = ... in keys[:-1] or len(keys) == rank
    return (keys[-1].start, keys[-1].stop) if whole and reaches_last else None


def _attention(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    return b.op(node, "attention", tuple(args[:3]), mask=args[3], **kwargs)


def _sdpa(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """Torch's own attention, called directly; its result is [B, N, T, D], unlike the interface's."""
    bound = _bind("query key value attn_mask dropout_p is_causal", args, kwargs)
    inputs = tuple(bound.pop(k) for k in ("query", "key", "value"))
    return b.op(node, "sdpa", inputs, mask=bound.pop("attn_mask", None), **bound)


def _linear(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input weight bias", args, kwargs)
    inputs = (bound["input"], bound["weight"], bound.get("bias"))
    return b.op(node, "linear", inputs, layout="out_in")


def _addmm(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input mat1 mat2", args, kwargs)
    if bound.get("beta", 1) != 1 or bound.get("alpha", 1) != 1:
        return b.op(node, "unknown:addmm", tuple(args))
    inputs = (bound["mat1"], bound["mat2"], bound["input"])
    return b.op(node, "linear", inputs, layout="in_out")


def _matmul(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """A product with a matrix of the module is a linear map, also with the matrix transposed."""
    bound = _bind("input other", args, kwargs)
    value, other = bound["input"], bound["other"]
    if _is(other, "param") and len(other.shape) == 2:
        return b.op(node, "linear", (value, other, None), layout="in_out")
    if _is(other, "permute") and other.attrs["order"] == (-1, -2) and _is(other.inputs[0], "param"):
        weight = other.inputs[0]
        return b.op(node, "linear", (value, weight, None), layout="out_in", absorbed=(other,))
    return b.op(node, "matmul", (value, other))


def _with_bias(b: Builder, node: fx.Node, left: Any, right: Any) -> Op | None:
    """`x @ W.T + b` as one linear map."""
    for product, bias in ((left, right), (right, left)):
        if not _is(product, "linear") or product.inputs[2] is not None or not _is(bias, "param"):
            continue
        if bias.shape == product.shape[-1:] and bias.dtype == product.dtype:
            inputs, layout = (*product.inputs[:2], bias), product.attrs["layout"]
            absorbed = (product, *product.absorbed)
            return b.op(node, "linear", inputs, layout=layout, absorbed=absorbed)
    return None


def _rms_norm(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input normalized_shape weight eps", args, kwargs)
    name = "rms_norm" if len(bound["normalized_shape"]) == 1 else "unknown:rms_norm"
    return b.op(node, name, (bound["input"], bound.get("weight"), bound.get("eps")))


def _embedding(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input weight", args, kwargs)
    return b.op(node, "embedding", (bound["input"], bound["weight"]))


def _layer_norm(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input normalized_shape weight bias eps", args, kwargs)
    inputs = (bound["input"], bound.get("weight"), bound.get("bias"), bound.get("eps", 1e-5))
    name = "layer_norm" if len(bound["normalized_shape"]) == 1 else "unknown:layer_norm"
    return b.op(node, name, inputs)


def _simple(name: str, arity: str) -> Translator:
    def translate(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        bound = _bind(arity, args, kwargs)
        return b.op(node, name, tuple(bound.get(k) for k in arity.split()))

    return translate


def _softmax(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("input dim", args, kwargs)
    dim = _dim(node, bound.get("dim"), _rank(bound["input"]))
    return b.op(node, "softmax", (bound["input"],), dim=dim, dtype=bound.get("dtype"))


def _cat(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("tensors dim", args, kwargs)
    dim = _dim(node, bound.get("dim", 0), len(node.meta["val"].shape))
    inputs = tuple(bound["tensors"])
    if dim == -1 and (turned := _rotated(inputs, _half)) is not None:
        return b.op(node, "rotate_half", turned[:1], absorbed=turned[1:])
    return b.op(node, "cat", inputs, dim=dim)


def _stack(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = _bind("tensors dim", args, kwargs)
    dim = _dim(node, bound.get("dim", 0), len(node.meta["val"].shape))
    return b.op(node, "stack", tuple(bound["tensors"]), dim=dim)


def _rotated(inputs: tuple[Any, ...], part: Callable[[Any, int], Any]) -> tuple[Op, ...] | None:
    """x and the steps between, if the inputs are (-second, first) of the two parts of one x."""
    if len(inputs) != 2 or not _is(inputs[0], "neg"):
        return None
    second, first = inputs[0].inputs[0], inputs[1]
    source = part(first, 0)
    if source is None or part(second, 1) is not source:
        return None
    return source, inputs[0], second, first


def _half(op: Any, which: int) -> Any:
    """What `op` is the first (0) or second (1) half of, along the last dimension."""
    if not _is(op, "slice") or op.attrs["dim"] != -1:
        return None
    width = op.inputs[0].shape[-1]
    half = (op.attrs["start"], op.attrs["end"]) == (which * (width // 2), width // (2 - which))
    return op.inputs[0] if half and width % 2 == 0 else None


def _each_other(op: Any, which: int) -> Any:
    """What `op` is the even (0) or odd (1) elements of, along the last dimension."""
    keys = ("(Ellipsis, slice(None, None, 2))", "(Ellipsis, slice(0, None, 2))")
    wanted = ("(Ellipsis, slice(1, None, 2))",) if which else keys
    return op.inputs[0] if _is(op, "getitem") and op.attrs["key"] in wanted else None


TRANSLATE: dict[str, Translator] = {
    **{n: _binary(n) for n in ("add", "sub", "mul", "div")},
    "multiply": _binary("mul"), "subtract": _binary("sub"),
    "divide": _binary("div"), "true_divide": _binary("div"), "truediv": _binary("div"),
    "radd": _binary("add", True), "rmul": _binary("mul", True), "rsub": _binary("sub", True),
    "rtruediv": _binary("div", True), "rdiv": _binary("div", True),
    **{n: _unary(n) for n in ("neg", "sqrt", "rsqrt", "exp", "tanh", "sigmoid", "silu", "square",
                              "relu", "abs", "log", "cos", "sin", "softplus", "erf")},
    "pow": _pow, "reciprocal": _reciprocal, "gelu": _gelu,
    "mean": _reduce("mean"), "sum": _reduce("sum"),
    **dict.fromkeys(("to", "float", "bfloat16", "half", "double", "type", "type_as"), _cast),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
                     "contiguous", "clone", "detach", "view_as", "reshape_as"), _view),
    "dropout": _dropout,
    **dict.fromkeys(("transpose", "permute", "swapaxes", "t"), _permute), "get:T": _permute,
    **dict.fromkeys(("chunk", "split", "tensor_split", "split_with_sizes"), _pieces),
    "getitem": _getitem, "narrow": _narrow, "attention": _attention,
    "scaled_dot_product_attention": _sdpa, "linear": _linear, "addmm": _addmm,
    "rms_norm": _rms_norm, "layer_norm": _layer_norm, "embedding": _embedding,
    "matmul": _matmul, "bmm": _simple("matmul", "input mat2"),
    "softmax": _softmax, "cat": _cat, "stack": _stack,
    "baddbmm": _simple("baddbmm", "input batch1 batch2"), "where": _simple("where", "a b c"),
}  # fmt: skip
