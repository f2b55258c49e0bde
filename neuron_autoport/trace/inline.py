"""One flat graph of a module with its children written out, for reading what it computes.

Only linear maps, and children that are asked for or could not be traced, stay calls. Operations in place become
values of their own; another name of the memory they change is no value any more. Made to be read, never to
be rewritten: `OpGraph`s of `canonical.py` stay the ones that rules match.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from neuron_autoport.trace.arguments import positional
from neuron_autoport.trace.canonical import Builder, activation_of
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.frame import after_write
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.select import SELECT
from neuron_autoport.trace.translate import TRANSLATE

Keep = Callable[[ModuleTrace], bool]


def inlined(trace: ModuleTrace, keep: Keep = lambda _: False) -> tuple[Op, ...]:
    """The tensors `trace` returns, each the root of its expression.

    Args:
        trace: of the module. keep: which children stay one `module` operation.

    Returns:
        One `Op` per tensor of the result. `target` of parameters, buffers and modules is their dotted path
        below the module. A part that cannot be read as values is an `unknown:` operation.
    """
    return tuple(FlatBuilder(trace, keep).outputs())


def source_of(op: Any) -> Any:
    """`op` without changes of shape that keep the order of elements."""
    while isinstance(op, Op) and op.name == "view":
        op = op.inputs[0]
    return op


class FlatBuilder(Builder):
    """Builds the operations of one module, and of the children below it, into one list."""

    def __init__(
        self,
        trace: ModuleTrace,
        keep: Keep,
        prefix: str = "",
        given: dict[str, Any] | None = None,
        ops: list[Op] | None = None,
    ) -> None:
        super().__init__(trace)
        self.keep, self.prefix, self.given = keep, prefix, given
        self.ops = [] if ops is None else ops
        self.results: dict[fx.Node, list[Any]] = {}

    def outputs(self) -> list[Any]:
        found: list[Any] = []
        for node in self.trace.graph.nodes:
            if node.op == "output":
                found = [self.operand(n) for n in node.args[0]]
            else:
                self.of[node] = self.translate(node)
        return found

    def translate(self, node: fx.Node) -> Any:
        if node.op == "placeholder" and self.given is not None:
            name = node.meta.get("source") or node.target  # a part of an argument is `NAME_0`
            return self.given.get(str(name)) or self.op(node, "unknown:input")
        if node.op == "get_attr":
            return self.op(node, "param", target=f"{self.prefix}{node.target}")
        if node.op != "call_function":
            return super().translate(node)
        name = getattr(node.target, "__name__", str(node.target)).strip("_")
        if node.target is after_write:
            old, call = (self.operand(a) for a in node.args)
            return call if isinstance(call, Op) and call.name == "setitem" else self.lost(node, old)
        if name == "getitem":
            return self.item(node)
        if node.meta.get("inplace"):
            return self.written(node, name)
        return super().translate(node)

    def lost(self, node: fx.Node, old: Any) -> Op:
        return self.op(node, "unknown:written", (old,))

    def item(self, node: fx.Node) -> Any:
        """A part of a child's result, elements chosen by a tensor, or what `canonical.py` has."""
        source, key = node.args
        if isinstance(source, fx.Node) and source in self.results:
            return self.part(node, source, key)
        if isinstance(key, fx.Node) and isinstance(self.of.get(key), Op):
            return self.op(node, "index", (self.operand(source), self.of[key]))
        return super().translate(node)

    def part(self, node: fx.Node, source: fx.Node, key: Any) -> Any:
        parts, result = self.results[source], source.meta["val"]
        before = 0
        for k in result if isinstance(result, dict) else range(len(result)):
            leaves = pytree.tree_leaves(result[k])
            if k == key:
                whole = isinstance(result[k], torch.Tensor) and before < len(parts)
                return parts[before] if whole else self.op(node, "unknown:nested result")
            before += sum(isinstance(leaf, torch.Tensor) for leaf in leaves)
        return self.op(node, "unknown:result")

    def written(self, node: fx.Node, name: str) -> Op:
        """An operation in place as the value it leaves behind."""
        args = [self.operand(a) for a in node.args]
        kwargs = {k: self.operand(v) for k, v in node.kwargs.items()}
        if not args or not isinstance(args[0], Op):
            return self.lost(node, None)
        self.forget(node)
        if name == "setitem":
            return self.op(node, "setitem", tuple(args))
        translator = TRANSLATE.get(name) or SELECT.get(name)
        try:
            made = translator(self, node, args, kwargs) if translator else None
        except LookupError:
            made = None
        return made or self.op(node, f"unknown:{name}", tuple(args))

    def forget(self, node: fx.Node) -> None:
        """Other names of the memory that `node` writes no longer stand for what they were made from."""
        memory = _memory(node.args[0])
        for other, known in list(self.of.items()):
            if isinstance(known, Op) and _memory(other) & memory:
                self.of[other] = self.lost(other, known)

    def module(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        path, trace = f"{self.prefix}{node.target}", next(self.calls).trace
        args, kwargs = positional(trace.forward, args, kwargs)
        alone = len(args) == 1 and not kwargs and not trace.writes
        inner = activation_of(trace) if alone else None
        if inner is not None:
            return args[0] if inner == "identity" else self.op(node, inner, (args[0],), target=path)
        if linear_of(trace) is not None or trace.end is not None or self.keep(trace):
            extra = {"kwargs": kwargs} if kwargs else {}
            inputs = (*args, *kwargs.values())
            return self.op(node, "module", inputs, target=path, trace=trace, **extra)
        if trace.writes:  # it changes what it is given: who reads that later reads another value
            return self.op(node, "unknown:written", (*args, *kwargs.values()))
        given = _given(trace, args, kwargs)
        child = FlatBuilder(trace, self.keep, f"{path}.", given, self.ops)
        results = child.outputs()
        if isinstance(node.meta.get("val"), torch.Tensor):
            return results[0]
        self.results[node] = results
        return self.op(node, "unknown:results", tuple(results))


def _memory(node: Any) -> set[int]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    return {t.untyped_storage()._cdata for t in tensors}


def _given(trace: ModuleTrace, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call by the parameter names of the child's forward; `NAME_0`: a part of a nested one."""
    names = list(inspect.signature(trace.forward).parameters)[1:]
    given = dict(zip(names, args, strict=False)) | kwargs
    parts = {
        f"{name}_{i}": leaf
        for name, value in given.items()
        if isinstance(value, list | tuple | dict)
        for i, leaf in enumerate(pytree.tree_leaves(value))
    }
    return parts | given
