"""Write a region of a graph as the equations of a pattern, with names for what it captures."""

from __future__ import annotations

import ast
import keyword
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from neuron_autoport.rules.pattern import OPERATIONS, REDUCTIONS
from neuron_autoport.rules.region import Finder, Region, is_view
from neuron_autoport.trace.ops import Op, OpGraph

_SIGNS: dict[str, type[ast.operator]] = {
    "add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "div": ast.Div, "pow": ast.Pow,
}  # fmt: skip
_RESERVED = {*OPERATIONS, *keyword.kwlist, "NF", "NK", "tp", "F", "torch", "nn", "self", "math"}
_MOST_STEPS = 120
# An attribute of a call's tree: it works in float32 on a narrower operand, without a cast in the pattern.
WIDE = "wide"


class Unsayable(Exception):
    """An operation that a pattern cannot say here; the region has to end before it."""

    def __init__(self, op: Op, why: str) -> None:
        super().__init__(why)
        self.op = op


@dataclass(frozen=True)
class Equation:
    """`targets = value`; a `split` cuts the value's last dimension into the targets."""

    targets: tuple[str, ...]
    value: ast.expr
    split: bool = False

    def __str__(self) -> str:
        text = ast.unparse(self.value)
        return f"{', '.join(self.targets)} = " + (f"split({text})" if self.split else text)


@dataclass
class Draft:
    """The pattern of a region.

    kinds: of captures, where they are no plain values. captured: the value of every name that is bound:
    an Op, also for modules and parameters. outputs: names of the region's results.
    """

    region: Region
    equations: list[Equation] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    captured: dict[str, Op] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[str]:
        """Names of captured tensors that come from outside, in the order they are first read."""
        inner = {name for e in self.equations for name in e.targets}
        return [n for n in self.captured if n not in self.kinds and n not in inner]


def write_equations(
    graph: OpGraph, finder: Finder, *, float_only: torch.dtype | None = None
) -> Draft | None:
    """The pattern of the largest region that can be said; None if there is no such operation.

    Args:
        float_only: captured tensors must have this dtype (for an example made from the pattern).
    """
    while True:
        region = finder.best()
        if region is None:
            return None
        try:
            draft = _Writer(graph, finder, region, float_only).write()
        except Unsayable as no:
            finder.banned[no.op] = str(no)
            continue
        if draft.inputs:
            return draft
        finder.banned |= dict.fromkeys(region.roots, "it is made of parameters only")


class _Writer:
    def __init__(
        self, graph: OpGraph, finder: Finder, region: Region, float_only: torch.dtype | None
    ) -> None:
        self.graph, self.finder, self.region = graph, finder, region
        self.float_only = float_only
        self.draft = Draft(region)
        self.names: dict[Op, str] = {}
        # Arguments of forward keep their names.
        read = [op for op in graph.inputs() if any(u in region.ops for u in op.users)]
        self.arguments = {str(op.target) for op in read}
        self.steps = 0

    def write(self) -> Draft:
        roots = sorted(self.region.roots, key=lambda o: o.index)
        many = len(roots) > 1
        for number, root in enumerate(roots, 1):
            self.names[root] = self.free(f"y{number}" if many else "y")
        starts = [*self.shared(), *self.cuts(), *roots]
        for op in sorted(starts, key=lambda o: o.index):
            self.equation(op)
        self.draft.outputs = tuple(self.names[r] for r in self.region.roots)
        by_index = sorted(self.draft.kinds, key=lambda n: self.draft.captured[n].index)
        self.draft.kinds = {name: self.draft.kinds[name] for name in by_index}
        order = {name: i for i, e in enumerate(self.draft.equations) for name in e.targets}
        for name in order:
            self.draft.captured[name] = next(o for o, n in self.names.items() if n == name)
        return self.draft

    def equation(self, op: Op) -> None:
        value = self.written(op)
        slices = self.slices_of(op)
        if not slices:
            self.draft.equations.append(Equation((self.names[op],), value))
            return
        for part in slices:
            self.names[part] = self.free("part")
        targets = tuple(self.names[part] for part in slices)
        self.draft.equations.append(Equation(targets, value, split=True))

    def slices_of(self, op: Op) -> list[Op]:
        found = [u for u in op.users if u.name == "slice" and u in self.region.ops]
        return sorted(found, key=lambda u: u.attrs["start"])

    def cuts(self) -> Iterator[Op]:
        for op in self.region.ops:
            if self.slices_of(op):
                yield op

    def shared(self) -> Iterator[Op]:
        """Inner values read several times, each time as they are: they get an equation of their own."""
        direct: Counter[Op] = Counter()
        viewed: set[Op] = set()
        for op in self.region.ops:
            for value in op.inputs:
                inner = self.inner(value)
                if inner is None or op.name == "slice" or is_view(op):
                    continue
                if inner is value:
                    direct[inner] += 1
                else:
                    viewed.add(inner)
        for op, count in direct.items():
            if count > 1 and op not in viewed and op not in self.names and op.name != "slice":
                self.names[op] = self.free("h")
                yield op

    def inner(self, value: Any) -> Op | None:
        """The operation of the region that `value` is, views taken off; None if it comes from outside."""
        while isinstance(value, Op) and is_view(value) and value in self.region.ops:
            value = value.inputs[0]
        inside = isinstance(value, Op) and value in self.region.ops and not is_view(value)
        return value if inside and value not in self.finder.absorbed else None

    # Expressions

    def operand(self, value: Any, reader: Op) -> ast.expr:
        if not isinstance(value, Op):
            return _number(value)
        if value in self.names:
            return ast.Name(self.names[value])
        inner = self.inner(value)
        if inner is None:
            return self.leaf(value, reader)
        if inner in self.names:
            raise Unsayable(reader, f"it reads {inner.label} through a view")
        return self.written(inner)

    def written(self, op: Op) -> ast.expr:
        """The expression of an operation of the region."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise Unsayable(op, "the pattern gets too long")
        if op.name == "module":
            return self.module(op)
        if op.name == "cast":
            return self.cast(op)
        parts = [self.operand(v, op) for v in op.inputs]
        if op.name in _SIGNS:
            return ast.BinOp(parts[0], _SIGNS[op.name](), parts[1])
        if op.name in REDUCTIONS:
            keep = [ast.keyword("keepdim", ast.Constant(True))] if op.attrs.get("keepdim") else []
            return ast.Call(ast.Name(op.name), [parts[0], _number(op.attrs["dim"])], keep)
        call = _call(op.name, *parts)
        given = op.inputs[0]
        widened = isinstance(given, Op) and given.dtype is not op.dtype is torch.float32
        setattr(call, WIDE, widened)
        return call

    def module(self, op: Op) -> ast.expr:
        kind = self.finder.kind_of(op)
        assert kind is not None
        known = [n for n, k in self.draft.kinds.items()
                 if k == kind and self.draft.captured[n] is op]  # fmt: skip
        name = known[0] if known else self.free(_last(str(op.target)))
        self.draft.kinds[name] = kind
        self.draft.captured[name] = op
        return _call(name, self.operand(op.inputs[0], op))

    def cast(self, op: Op) -> ast.expr:
        value = self.operand(op.inputs[0], op)
        if op.dtype is torch.float32:
            return _call("fp32", value)
        # Equations and operands are solved in this order: what is captured by now is bound by then.
        read = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        models = [n for n in self.draft.captured if n not in self.draft.kinds
                  and self.draft.captured[n].dtype == op.dtype]  # fmt: skip
        if not models:
            raise Unsayable(op, f"no captured value has the dtype {op.dtype}")
        return _call("like", value, ast.Name(max(reversed(models), key=read.__contains__)))

    def leaf(self, value: Op, reader: Op) -> ast.expr:
        """A value from outside: a parameter, or a tensor that is captured as it is read."""
        under = value
        while is_view(under):
            under = under.inputs[0]
        if under.name == "param":
            return self.captured(under, str(under.target), "parameter", reader)
        wanted = _last(str(value.target)) if value.name == "input" and value.target else "x"
        return self.captured(value, wanted, None, reader)

    def captured(self, op: Op, wanted: str, kind: str | None, reader: Op) -> ast.expr:
        if self.float_only is not None and op.dtype != self.float_only:
            raise Unsayable(reader, f"it reads {op.label} of dtype {op.dtype}")
        if kind is None and not op.shape:
            raise Unsayable(reader, f"it reads {op.label}, a single number")
        if op not in self.names:
            self.names[op] = self.free(_last(wanted), op.name == "input")
            self.draft.captured[self.names[op]] = op
            if kind is not None:
                self.draft.kinds[self.names[op]] = kind
        return ast.Name(self.names[op])

    def free(self, wanted: str, argument: bool = False) -> str:
        """A name like `wanted` that nothing else has."""
        used = {*self.names.values(), *self.draft.captured, *_RESERVED}
        used |= set() if argument else self.arguments
        name, number = wanted, 2
        while name in used:
            name, number = f"{wanted}{number}", number + 1
        return name


def _last(path: str) -> str:
    """A short name for a dotted path: `gate` for `mlp.gate`, `experts_0` for `experts.0`."""
    parts = [p for p in path.split(".") if p]
    while len(parts) > 1 and not parts[-1].isdigit():
        parts.pop(0)
    name = re.sub(r"\W", "_", "_".join(parts[-2:])) or "x"
    return name if not name[0].isdigit() else f"m_{name}"


def _number(value: Any) -> ast.expr:
    if isinstance(value, int | float) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name), list(arguments), [])
