"""From a traced module to the equations of a pattern: the largest part of its graph that patterns can say.

A region has one or more results and goes back from them as far as every operation is one a pattern knows and
nothing outside reads what is inside. What it reads from outside are its captures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from neuron_autoport.rules.pattern import REDUCTIONS
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.spelling import SPELLED, SPELLED_WITH
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.ops import Op, OpGraph, is_float

BINARY = ("add", "sub", "mul", "div", "pow")


@dataclass(frozen=True, eq=False)
class Region:
    """roots: its results. ops: all operations inside, results among them; views are not counted in `size`."""

    roots: tuple[Op, ...]
    ops: frozenset[Op]

    @property
    def size(self) -> int:
        return sum(not is_view(op) and op.name != "pieces" for op in self.ops)


class Finder:
    """Finds regions of one graph.

    Args:
        roles: tells which child modules have a role; with none they are looked at from outside.
    """

    def __init__(self, graph: OpGraph, roles: Roles | None = None) -> None:
        self.graph, self.roles = graph, roles
        # Known operations that a pattern cannot say where they stand, and why.
        self.banned: dict[Op, str] = {}
        self.absorbed = {op for whole in graph.ops for op in whole.absorbed}

    def best(self) -> Region | None:
        """The region with most operations; of several the one nearest to the end."""
        found = [self.region((op,)) for op in self.graph.ops if self.is_known(op)]
        outputs = tuple(dict.fromkeys(self.graph.outputs))
        if len(outputs) > 1 and all(self.is_known(op) for op in outputs):
            found.append(self.region(outputs))
        return max(reversed(found), key=lambda r: r.size, default=None)

    def region(self, roots: tuple[Op, ...]) -> Region:
        """All that only `roots` are made of, as far as patterns can say it."""
        inside = set(roots)
        first = max(op.index for op in roots)
        waiting: set[Op] = set()  # slices, until what they are cut from is known
        for op in sorted(self.graph.ops, key=lambda o: -o.index):
            if op.index >= first or op in inside or not self.is_inner(op, inside | waiting):
                continue
            if op.name == "slice":
                waiting.add(op)
                continue
            cut = [u for u in op.users if u.name in ("slice", "pieces")]
            if cut and not self.is_cut_whole(op, waiting):
                continue
            inside |= {op, *cut}
        return Region(roots, frozenset(inside))

    def is_inner(self, op: Op, inside: set[Op]) -> bool:
        """Is it read inside only, and something a pattern can say?"""
        users = [u for u in op.users if u.name != "pieces" or u.users]
        if not users or op in self.graph.outputs or not all(u in inside for u in users):
            return False
        return op.name == "slice" or is_view(op) or op in self.absorbed or self.is_known(op)

    def is_cut_whole(self, op: Op, slices: set[Op]) -> bool:
        """Is `op` cut into these slices of its last dimension, each column in one, and used in no other way?"""
        parts = [u for u in op.users if u.name == "slice"]
        rest = [u for u in op.users if u.name not in ("slice", "pieces")]
        spans = sorted((u.attrs["start"], u.attrs["end"]) for u in parts)
        filled = [s for s, _ in spans] == [0, *(e for _, e in spans[:-1])]
        filled = filled and spans[-1][1] == op.shape[-1] if spans else False
        last = all(u.attrs["dim"] == -1 for u in parts)
        return filled and last and not rest and set(parts) <= slices

    def is_known(self, op: Op) -> bool:
        """Can a pattern say this operation?"""
        if op.inplace or op.written or op in self.absorbed or op in self.banned or not op.spans:
            return False
        if op.name == "module":
            return self.kind_of(op) is not None and not op.attrs.get("kwargs")
        values = [v for v in op.inputs if isinstance(v, Op)]
        if not all(isinstance(v, Op) or _is_number(v) or v is None for v in op.inputs):
            return False
        if op.name == "cast":
            return op.dtype in _FLOATS and values[0].dtype in _FLOATS
        if op.name in BINARY:
            return len(op.inputs) == 2 and bool(values) and not _spreads_both(op)
        if op.name in REDUCTIONS:
            dim = op.attrs.get("dim")
            return isinstance(dim, int) and dim < 0
        if op.name in SPELLED_WITH:
            return op.name != "clamp" or len(values) == 1  # bounds are numbers or none
        return op.name in SPELLED and len(op.inputs) == 1

    def kind_of(self, op: Op) -> str | None:
        """`linear`, or the role of a child module; None if it is neither."""
        if op.trace is None or len(op.inputs) != 1:
            return None
        if linear_of(op.trace) is not None:
            return "linear"
        if self.roles is None:
            return None
        for role in sorted(self.roles.by_role):
            if self.roles.of(op.trace, role) is not None:
                return role
        return None


_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})


def is_view(op: Op) -> bool:
    """A layout step that a pattern looks through: the last dimension stays."""
    if op.name != "view" or not isinstance(op.inputs[0], Op):
        return False
    return bool(op.attrs.get("same")) or op.inputs[0].shape[-1:] == op.shape[-1:]


def _is_number(value: Any) -> bool:
    return is_float(value) and math.isfinite(value)


def _spreads_both(op: Op) -> bool:
    sizes = [math.prod(v.shape) for v in op.inputs if isinstance(v, Op)]
    return len(sizes) == 2 and math.prod(op.shape) > max(sizes)
