"""Which columns of a linear map's result a value holds, found by doing its layout steps on numbers.

A packed projection is cut into query, key and value in many ways: thirds, every third head, groups with their
own key and value. Instead of a rule for each, the recorded views, transpositions and slices run on a tensor that
holds its own column numbers; what comes out says which columns went where.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from neuron_autoport.rules.match import Columns
from neuron_autoport.trace.ops import Op

# Steps that move elements and compute nothing.
_LAYOUT = frozenset({"view", "permute", "slice", "pieces", "getitem"})
_LAYOUT_CALLS = frozenset({"unbind", "movedim", "select", "moveaxis"})


@dataclass(frozen=True, eq=False)
class Cut:
    """A value in parts: each part with its columns, and the layout steps between."""

    between: tuple[Op, ...]
    parts: dict[Op, Columns]


def cut_of(base: Op, count: int) -> Cut | str:
    """How `base` is cut into `count` parts by layout alone, or why it is not.

    Args:
        base: [B, T, F], the result of a linear module.
    """
    if base.name != "module" or len(base.shape) != 3:
        return "not the [batch, token, feature] result of a linear module"
    between: list[Op] = []
    current = base
    while len(current.users) == 1 and _is_layout(current.users[0]):
        current = current.users[0]
        between.append(current)
    parts = [p for user in current.users for p in _opened(user, between)]
    parts = [_end_in_helper(part, between) for part in parts]
    if len(parts) != count or not all(_is_layout(p) for p in parts):
        return f"not cut into {count} parts by layout alone"
    found = {part: _columns(base, part) for part in parts}
    known = {part: columns for part, columns in found.items() if columns is not None}
    every = sorted(c for columns in known.values() for c in columns.columns)
    if len(known) != count or every != list(range(base.shape[-1])):
        return "its parts are not each column once, for every token"
    return Cut(tuple(between), known)


def _opened(user: Op, between: list[Op]) -> list[Op]:
    """A part, or the parts of a call that gives several (`chunk`, `unbind`)."""
    if user.shape or not _is_layout(user):
        return [user]
    between.append(user)
    return user.users


def _end_in_helper(part: Op, between: list[Op]) -> Op:
    """The part as it leaves the helper function it is cut in: only that can be replaced in forward."""
    while len(part.spans) > 1 and len(part.users) == 1:
        (user,) = part.users
        if not _is_layout(user) or len(user.spans) < 2 or user.spans[0] != part.spans[0]:
            break
        between.append(part)
        part = user
    return part


def _is_layout(op: Op) -> bool:
    target = getattr(op.node.target, "__name__", "") if op.node is not None else ""
    known = op.name in _LAYOUT or target in _LAYOUT_CALLS
    return known and not op.inplace and len(op.operands()) == 1


def _columns(base: Op, part: Op) -> Columns | None:
    """The columns of `part`, if each token's part is made of that token's columns alone."""
    batch, tokens, width = base.shape
    moved = _run(part, base, torch.arange(math.prod(base.shape)).view(base.shape))
    if moved is None:
        return None
    for axis in (1, 2):
        if moved.ndim <= axis or moved.shape[0] != batch or moved.shape[axis] != tokens:
            continue
        by_token = moved.movedim(axis, 1).reshape(batch, tokens, -1)
        columns = by_token[0, 0]
        starts = torch.arange(batch * tokens).view(batch, tokens, 1) * width
        if torch.equal(by_token, starts + columns):
            tail = tuple(moved.movedim(axis, 1).shape[2:])
            return Columns(str(base.target), tuple(columns.tolist()), tail, axis == 2)
    return None


def _run(part: Op, base: Op, numbers: torch.Tensor) -> torch.Tensor | None:
    """The value of `part` if that of `base` were `numbers`."""
    path = [part]
    while path[-1] is not base:
        path.append(path[-1].operands()[0])
    nodes = {op.node for op in path}
    done: dict[fx.Node | None, Any] = {base.node: numbers}
    for op in reversed(path[:-1]):
        _do(op.node, done, nodes)
    value = done[part.node]
    return value if isinstance(value, torch.Tensor) else None


def _do(node: fx.Node | None, done: dict[fx.Node | None, Any], nodes: set[fx.Node | None]) -> None:
    """Run one recorded call; a canonical slice stands for a call and the choice of one of its results."""
    assert node is not None and callable(node.target)
    for before in node.all_input_nodes:
        if before not in done:
            _do(before, done, nodes)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: done[n])
    done[node] = node.target(*args, **kwargs)
