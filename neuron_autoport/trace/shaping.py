"""Translators of what changes layout or dtype: views, casts, permutations, slices, joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from neuron_autoport.trace.arguments import Translator, bind, from_end, named, rank_of
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.rotations import EVEN, ODD, from_real, from_stack, half_rotated

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder

_ALL = slice(None)


def cast(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
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
    if named(source, "stack") and (found := from_stack(source, shape)) is not None:
        name, value, between = found
        return b.op(node, name, (value,), absorbed=between)
    if named(source, "as_real") and (z := from_real(source, shape)) is not None:
        return b.op(node, "complex_as_pairs", (z,), absorbed=(source,))
    if getattr(node.target, "__name__", "") != "unsqueeze":
        return b.op(node, "view", (source,), same=source.shape == shape)
    dim = bind("input dim", args, kwargs)["dim"] % len(shape)
    return _unsqueeze(b, node, source, dim)


def _unsqueeze(b: Builder, node: fx.Node, source: Op, axis: int) -> Op:
    """A new axis of size one; where a mean or sum has just lost its own, the same with `keepdim`."""
    dim = source.attrs.get("dim") if source.name in ("mean", "sum") else None
    if (
        isinstance(dim, int)
        and not source.attrs["keepdim"]
        and axis == dim + len(node.meta["val"].shape)
    ):
        return b.op(node, source.name, source.inputs, dim=dim, keepdim=True, absorbed=(source,))
    return b.op(node, "view", (source,), same=False, unsqueeze=axis)


def _dropout(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input p training", args, kwargs)
    if bound.get("training", True) and bound.get("p", 0.5):
        return b.op(node, "unknown:dropout", (bound["input"],))
    return b.op(node, "view", (bound["input"],), same=True)


_AXES = {"axis0": "dim0", "axis1": "dim1"}


def _permute(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    name = getattr(node.target, "__name__", "")
    source = bind("input", args, kwargs)["input"]
    rank = rank_of(source)
    order = list(range(rank))
    if name in ("transpose", "swapaxes"):
        bound = bind("input dim0 dim1", args, {_AXES.get(k, k): v for k, v in kwargs.items()})
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
    bound = bind("input sizes dim", args, kwargs)
    bound["input"] = bound.pop("tensor", bound.get("input"))
    dim = from_end(bound.get("dim", 0), rank_of(bound["input"]))
    return b.op(node, "pieces", (bound["input"],), dim=dim)


def _narrow(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("input dim start length", args, kwargs)
    source, start, length = bound["input"], bound["start"], bound["length"]
    if isinstance(start, Op):
        return b.op(node, "unknown:narrow", (source, start))
    dim = from_end(bound["dim"], rank_of(source))
    start = start % source.shape[dim] if start < 0 else start
    return b.op(node, "slice", (source,), dim=dim, start=start, end=start + length)


def _getitem(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    source, key = args
    if named(source, "pieces") and isinstance(key, int):
        dim = source.attrs["dim"]
        parts = source.node.meta["val"]
        start = sum(p.shape[dim] for p in parts[:key])
        end = start + parts[key].shape[dim]
        return b.op(node, "slice", (source.inputs[0],), dim=dim, start=start, end=end)
    text = str(key)
    if isinstance(source, Op) and source.shape:
        keys, rank = key if isinstance(key, tuple) else (key,), rank_of(source)
        axis = _new_axis(keys, rank)
        if axis is not None:
            return _unsqueeze(b, node, source, axis)
        last = _last_dim_slice(keys, rank)
        if last is not None and last.step in (None, 1):
            start, end, _ = last.indices(source.shape[-1])
            return b.op(node, "slice", (source,), dim=-1, start=start, end=end)
        if last is not None and last.step == 2 and last.stop is None and last.start in (None, 0, 1):
            text = ODD if last.start == 1 else EVEN
    return b.op(node, "getitem", (source, *_values_in(key)), key=text)


def _values_in(key: Any) -> list[Op]:
    """Values that an index depends on."""
    if isinstance(key, slice):
        key = (key.start, key.stop, key.step)
    if isinstance(key, list | tuple):
        return [v for part in key for v in _values_in(part)]
    return [key] if isinstance(key, Op) else []


def _new_axis(keys: tuple[Any, ...], rank: int) -> int | None:
    """Where `keys` put in one dimension of size one, if they do nothing else."""
    if sum(k is None for k in keys) != 1 or not all(k is None or _is_whole(k) for k in keys):
        return None
    place = next(i for i, k in enumerate(keys) if k is None)
    if any(k is ... for k in keys[:place]):
        return rank - (len(keys) - 1 - place)
    return place


def _is_whole(key: Any) -> bool:
    return key is ... or (isinstance(key, slice) and not _values_in(key) and key == _ALL)


def _last_dim_slice(keys: tuple[Any, ...], rank: int) -> slice | None:
    """The slice of the last dimension, if `keys` cut nothing else and no tensor says where."""
    last = keys[-1] if keys else None
    if not isinstance(last, slice) or _values_in(last):
        return None
    reaches_last = ... in keys[:-1] or len(keys) == rank
    return last if reaches_last and all(_is_whole(k) for k in keys[:-1]) else None


def join(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    """cat, in any spelling."""
    bound = bind("tensors dim", args, kwargs)
    dim = from_end(bound.get("dim", 0), len(node.meta["val"].shape))
    inputs = tuple(bound["tensors"])
    if dim == -1 and (turned := half_rotated(inputs)) is not None:
        return b.op(node, "rotate_half", turned[:1], absorbed=turned[1:])
    return b.op(node, "cat", inputs, dim=dim)


def _stack(b: Builder, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
    bound = bind("tensors dim", args, kwargs)
    dim = from_end(bound.get("dim", 0), len(node.meta["val"].shape))
    return b.op(node, "stack", tuple(bound["tensors"]), dim=dim)


SHAPING: dict[str, Translator] = {
    **dict.fromkeys(("to", "float", "bfloat16", "half", "double", "type", "type_as"), cast),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
                     "contiguous", "clone", "detach", "view_as", "reshape_as"), _view),
    "dropout": _dropout,
    **dict.fromkeys(("transpose", "permute", "swapaxes", "t"), _permute), "get:T": _permute,
    **dict.fromkeys(("chunk", "split", "tensor_split", "split_with_sizes"), _pieces),
    "getitem": _getitem, "narrow": _narrow, "cat": join, "stack": _stack,
}  # fmt: skip
