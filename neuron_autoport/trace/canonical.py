"""From a torch.fx graph to canonical operations (`ops.Op`), node by node.

Each torch name has one small translator (`translate.py`); a name without one becomes `unknown:NAME`,
which no rule matches.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from neuron_autoport.trace.arguments import positional
from neuron_autoport.trace.elementwise import ACTIVATIONS, name_elementwise
from neuron_autoport.trace.in_place import after, settle
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.ops import Op, OpGraph
from neuron_autoport.trace.select import SELECT
from neuron_autoport.trace.translate import TRANSLATE

_made: WeakKeyDictionary[ModuleTrace, OpGraph] = WeakKeyDictionary()


def canonical_graph(trace: ModuleTrace) -> OpGraph:
    """The canonical graph of a traced class, made once. The fx graph is not changed."""
    if trace not in _made:
        _made[trace] = Builder(trace).build()
    return _made[trace]


class Builder:
    def __init__(self, trace: ModuleTrace) -> None:
        self.trace = trace
        self.calls = iter(trace.children)  # in the order of the graph's module calls
        self.ops: list[Op] = []
        self.of: dict[fx.Node, Op | tuple[str, Op]] = {}

    def build(self) -> OpGraph:
        outputs: list[Op] = []
        for node in self.trace.graph.nodes:
            if node.op == "output":
                outputs = [self.operand(n) for n in node.args[0]]
            else:
                self.of[node] = self.translate(node)
        for index, op in enumerate(self.ops):
            op.index = index
            for used in dict.fromkeys(op.operands()):
                used.users.append(op)
        name_elementwise(self.ops, outputs)
        return OpGraph(tuple(self.ops), tuple(outputs))

    def operand(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.of[value]
        if isinstance(value, list | tuple):
            return tuple(self.operand(v) for v in value)
        if isinstance(value, slice):
            return slice(*(self.operand(v) for v in (value.start, value.stop, value.step)))
        return value

    def op(self, node: fx.Node, name: str, inputs: tuple[Any, ...] = (), **attrs: Any) -> Op:
        """Append an op with the shape, dtype and spans of `node`; `attrs` are its own."""
        target, trace = attrs.pop("target", None), attrs.pop("trace", None)
        absorbed = attrs.pop("absorbed", ())
        made = Op(name, inputs, attrs, target=target, trace=trace, node=node)
        made.spans = node.meta.get("spans", ())
        made.inplace = bool(node.meta.get("inplace"))
        made.written = tuple(self.operand(n) for n in node.meta.get("written", ()))
        made.absorbed = absorbed
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            made.shape, made.dtype = tuple(value.shape), value.dtype
        self.ops.append(made)
        return made

    def translate(self, node: fx.Node) -> Op:
        if node.op == "placeholder":
            return self.op(node, "input", target=node.meta.get("source") or str(node.target))
        if node.op == "get_attr":
            return self.op(node, "param", target=str(node.target))
        args = [self.operand(a) for a in node.args]
        kwargs = {k: self.operand(v) for k, v in node.kwargs.items()}
        if node.op == "call_module":
            return self.module(node, args, kwargs)
        name = getattr(node.target, "__name__", str(node.target))
        if name == "__get__":
            name = "get:" + getattr(getattr(node.target, "__self__", None), "__name__", "?")
        plain = name.strip("_")
        if node.meta.get("inplace") and plain not in ACTIVATIONS:
            return self.op(node, f"unknown:{name}", (*args, *kwargs.values()))
        if (result := after(self, node)) is not None:
            return result
        translator = TRANSLATE.get(plain) or SELECT.get(plain)
        if translator is not None:
            try:
                return translator(self, node, args, kwargs)
            except LookupError:  # called with arguments that are not expected here
                pass
        return self.op(node, f"unknown:{name}", (*args, *kwargs.values()))

    def module(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Op:
        path, trace = str(node.target), next(self.calls).trace
        args, kwargs = positional(trace.forward, args, kwargs)
        inner = activation_of(trace) if len(args) == 1 and not kwargs else None
        if inner == "identity":
            made = self.op(node, "view", (args[0],), target=path)
        elif inner is not None:
            made = settle(self, node, self.op(node, inner, (args[0],), target=path))
        else:
            extra = {"kwargs": kwargs} if kwargs else {}
            inputs = (*args, *kwargs.values())
            made = self.op(node, "module", inputs, target=path, trace=trace, **extra)
        made.hooked = trace.any_hooked
        return made

    def cast(self, node: fx.Node, value: Any, dtype: torch.dtype) -> Op:
        made = self.op(node, "cast", (value,), dtype=dtype, implicit=True)
        made.shape, made.dtype = value.shape, dtype
        return made


def activation_of(trace: ModuleTrace) -> str | None:
    """Name of the elementwise function a child module is, or `identity`, read from its own trace."""
    graph = canonical_graph(trace)
    inside = {op for whole in graph.ops for op in whole.absorbed}
    work = [op for op in graph.ops if op.name != "input" and op not in inside]
    if len(graph.inputs()) != 1 or len(graph.outputs) != 1:
        return None
    if not work or (len(work) == 1 and work[0].name == "view" and work[0].attrs.get("same")):
        return "identity"
    if len(work) == 1 and work[0].name in ACTIVATIONS and graph.outputs[0] is work[0]:
        return work[0].name
    return None
