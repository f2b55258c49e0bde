"""Elementwise functions by what they compute, whatever their spelling.

`0.5 * x * (1 + tanh(0.79788 * (x + 0.044715 * x**3)))` is `gelu_tanh(x)`. A cone of elementwise
operations over one value is run on sample points in float64 and compared with the known functions;
constants need not be written alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_autoport.trace.ops import Op, is_float

_OPS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "neg": torch.neg, "square": torch.square, "sqrt": torch.sqrt, "exp": torch.exp,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "silu": F.silu, "erf": torch.erf,
    "softplus": F.softplus, "reciprocal": torch.reciprocal, "abs": torch.abs,
}  # fmt: skip
FUNCTIONS = frozenset(_OPS)
# Those that a rule may capture, whatever a model calls them by.
ACTIVATIONS = frozenset(
    {"silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "sigmoid", "tanh"}
)
_PASS = frozenset({"view", "cast"})
_KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: torch.relu(x).square(),
    "silu": F.silu,
}
# Both tails, the bend, and values near zero, where the known functions differ most from each other.
# On the CPU, also where this module is first imported while a model is built on another device.
_POINTS = torch.cat(
    [
        torch.linspace(-9, 9, 61, device="cpu"),
        torch.tensor([-1e-3, 0.0, 1e-3, 0.5, math.pi], device="cpu"),
    ]
).double()
_CLOSE = 1e-7  # constants are written with eight digits or more; the GELUs differ by 1e-4 and more
_MOST = 16  # operations in a cone


def name_elementwise(ops: list[Op], outputs: list[Op]) -> None:
    """Rename each result of a known function to that function. Changes `ops`.

    Its operands become the function's argument, and it absorbs the operations in between. Only cones that
    no other code looks into are taken, the widest first.
    """
    gone, returned = set[Op](), set(outputs)
    for root in reversed(ops):
        if root.name not in _OPS or root in gone or root.inplace:
            continue
        for leaf, cone in _cones(root):
            name = _function(root, leaf)
            if name is not None and _closed(cone, root) and not (cone - {root}) & returned:
                _absorb(root, name, leaf, cone)
                gone |= cone - {root}
                break


def _cones(root: Op) -> Iterator[tuple[Op, set[Op]]]:
    """Values that `root` is an elementwise function of, the farthest first, with what lies between."""
    order = [root]
    for op in order:
        inner = op.name in _OPS or (op.name in _PASS and op is not root)
        if inner and len(order) <= _MOST:
            order += [v for v in op.operands() if v not in order]
    for leaf in reversed(order[1:]):
        if leaf.name not in ("param",) and (cone := _between(root, leaf)) is not None:
            yield leaf, cone


def _between(root: Op, leaf: Op) -> set[Op] | None:
    """All operations from `leaf` to `root`, if `root` is computed from nothing else."""
    found: set[Op] = set()
    todo = [root]
    while todo:
        op = todo.pop()
        if op is leaf or op in found:
            continue
        if op.name not in _OPS and op.name not in _PASS:
            return None
        if op.inplace or op.shape != root.shape or len(found) > _MOST:
            return None
        found.add(op)
        todo += op.operands()
    return found if len(found) > 1 else None


def _closed(cone: set[Op], root: Op) -> bool:
    """Does all code outside read only the result?"""
    return all(user in cone for op in cone if op is not root for user in op.users)


def _function(root: Op, leaf: Op) -> str | None:
    try:
        values = _run(root, leaf, {})
    except (TypeError, RuntimeError):  # an argument that this operation does not take
        return None
    for name, function in _KNOWN.items():
        if torch.allclose(values, function(_POINTS), rtol=_CLOSE, atol=_CLOSE):
            return name
    return None


def _run(op: Any, leaf: Op, done: dict[Op, Tensor]) -> Any:
    """The value of `op` if that of `leaf` were the sample points."""
    if op is leaf:
        return _POINTS
    if not isinstance(op, Op):
        if is_float(op):
            return torch.tensor(float(op), dtype=torch.float64)
        raise TypeError(f"{op!r} is no number")
    if op not in done:
        operands = [_run(v, leaf, done) for v in op.inputs if v is not None]
        done[op] = operands[0] if op.name in _PASS else _OPS[op.name](*operands)
    return done[op]


def _absorb(root: Op, name: str, leaf: Op, cone: set[Op]) -> None:
    inner = sorted(cone - {root}, key=lambda op: op.index)
    for op in {v for o in cone for v in o.operands()}:
        op.users = [u for u in op.users if u not in cone]
    root.absorbed = (*root.absorbed, *(o for op in inner for o in (op, *op.absorbed)))
    root.name, root.inputs, root.attrs = name, (leaf,), {}
    leaf.users.append(root)
