"""The canonical form of a traced graph: one vocabulary, whatever the spelling in the source.

`x.pow(2)`, `x * x`, `torch.square(x)` are `square(x)`; `torch.rsqrt(v)`, `v ** -0.5`, `1 / v.sqrt()`
are `rsqrt(v)`; `chunk`, `split`, `narrow` and `x[..., a:b]` are `slice(x)` with dim, start and end.
Dimensions count from the end (negative). What carries meaning stays: dims, keepdim, dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils import _pytree as pytree

from neuron_autoport.trace.spans import Span

Operand: TypeAlias = "Op | int | float | bool | str | tuple[Any, ...] | None"

# Layout changes that keep the order of elements, so a rule may look through them.
VIEWS = frozenset({"view"})


@dataclass(eq=False, slots=True, weakref_slot=True)
class Op:
    """One value of a graph.

    name: canonical operation; `input`, `param`, `module`, `attention` and `unknown:*` among them.
    inputs: operands in a fixed order. attrs: what else tells it apart (dim, keepdim, dtype, ...).
    target: dotted path of a `module` or `param`, name of an `input`.
    spans: source expressions, the one in the class's forward first. trace: of a `module`.
    inplace: it changes the data of the values `written`. absorbed: ops it stands for together with
    its own, such as the `sqrt` of `1 / sqrt(v)`. hooked: it is the call of a child, and hooks run in it.
    """

    name: str
    inputs: tuple[Any, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    target: str | None = None
    spans: tuple[Span, ...] = ()
    trace: Any = None
    inplace: bool = False
    hooked: bool = False
    written: tuple[Op, ...] = ()
    absorbed: tuple[Op, ...] = ()
    users: list[Op] = field(default_factory=list)
    index: int = -1
    node: fx.Node | None = None

    def operands(self) -> list[Op]:
        """All operands that are values of the graph, nested ones too."""
        found: list[Op] = []
        _add_ops(self.inputs, found)
        found += self.written
        found += self.absorbed
        return found

    def storages(self) -> set[int]:
        """Identities of the memory its value lies in; of the values it is a view of, too."""
        value = self.node.meta.get("val") if self.node is not None else None
        tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
        own = {t.untyped_storage()._cdata for t in tensors}
        if self.name in VIEWS and self.inputs:
            own |= self.inputs[0].storages()
        return own

    @property
    def label(self) -> str:
        """`name` or `name(target)`, for messages."""
        return f"{self.name}({self.target})" if self.target else self.name

    def __repr__(self) -> str:
        return f"%{self.index}:{self.label}{list(self.shape)}"


def _add_ops(values: Iterable[Any], found: list[Op]) -> None:
    for value in values:
        if isinstance(value, Op):
            found.append(value)
        elif isinstance(value, list | tuple):
            _add_ops(value, found)


@dataclass(frozen=True, eq=False)
class OpGraph:
    """The canonical graph of one module class: its values in order of execution, and its outputs."""

    ops: tuple[Op, ...]
    outputs: tuple[Op, ...]

    def inputs(self) -> list[Op]:
        return list(self.by_name.get("input", ()))

    @cached_property
    def by_name(self) -> dict[str, list[Op]]:
        """The operations of each name, in order of execution."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            found.setdefault(op.name, []).append(op)
        return found

    def named(self, names: frozenset[str]) -> list[Op]:
        """All operations of these names, in order of execution."""
        found = [self.by_name[name] for name in names if name in self.by_name]
        if len(found) < 2:
            return found[0] if found else []
        return sorted((op for ops in found for op in ops), key=lambda op: op.index)

    @cached_property
    def calls_alike(self) -> list[list[Op]]:
        """The calls of child modules, those that have one trace together: of layers that repeat, say."""
        found: dict[int, list[Op]] = {}
        for op in self.by_name.get("module", ()):
            found.setdefault(id(op.trace), []).append(op)
        return list(found.values())


def is_float(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ancestry(op: Op) -> set[Op]:
    """`op` and every value it is computed from."""
    seen, todo = set(), [op]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo.extend(current.operands())
    return seen
