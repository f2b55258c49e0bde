"""The recording of one forward: a torch.fx graph that grows while the forward runs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from neuron_autoport.trace.members import Names
from neuron_autoport.trace.module_trace import ChildCall
from neuron_autoport.trace.spans import Span, running_spans

_NODE_VALUES = (fx.Node, str, int, float, bool, complex, torch.dtype, torch.device, torch.Size)


def forward_code(module: nn.Module) -> Any:
    """Code object of the function as written in the class, decorators taken off."""
    function = inspect.unwrap(type(module).forward)
    return getattr(function, "__code__", None)


class Frame:
    """The recording of one module's forward.

    names: of the module, or of one that it is below; prefix: what its own paths begin with there.
    """

    def __init__(self, root: nn.Module, names: Names | None = None, prefix: str = "") -> None:
        self.root = root
        self.names, self.prefix = names or Names(root), prefix
        self.code = forward_code(root)
        self.graph = fx.Graph()
        self.nodes: dict[int, tuple[fx.Node, torch.Tensor]] = {}
        self.children: list[ChildCall] = []
        self.assumed: list[str] = []
        self.asked: list[tuple[Span, ...]] = []
        self.sized: set[tuple[Span, ...]] = set()

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that made `tensor`; states of the module and foreign tensors get one here."""
        known = self.nodes.get(id(tensor))
        if known is not None:
            return known[0]
        state = self.state_of(tensor)
        if state is not None:
            with _quiet_get_attr():
                node = self.graph.get_attr(state)
        else:
            node = self.graph.create_node("call_function", constant_tensor, (), {})
        self.bind(node, tensor)
        return node

    def path_of(self, module: nn.Module) -> str | None:
        """Path of a module below this one."""
        return self.names.path_of(module, self.prefix)

    def state_of(self, tensor: torch.Tensor) -> str | None:
        """Path of a parameter or buffer of this module or of one below it."""
        return self.names.state_of(tensor, self.prefix)

    def bind(self, node: fx.Node, tensor: torch.Tensor) -> None:
        node.meta["val"] = tensor
        self.nodes[id(tensor)] = (node, tensor)

    def bind_inputs(self, args: Any, kwargs: Any) -> tuple[str, ...]:
        """Placeholders for every tensor argument, named as in the signature."""
        signature = inspect.signature(inspect.unwrap(type(self.root).forward))
        try:
            given = signature.bind(self.root, *args, **kwargs).arguments
        except TypeError:
            given = {f"arg{i}": a for i, a in enumerate(args)} | kwargs
        names = []
        for name, value in list(given.items())[1:]:
            parts = value.items() if isinstance(value, dict) else [(None, value)]
            for key, part in parts:
                label = name if key is None else str(key)
                for i, tensor in enumerate(pytree.tree_leaves(part)):
                    if not isinstance(tensor, torch.Tensor) or self.state_of(tensor) is not None:
                        continue
                    whole = tensor is part
                    node = self.graph.placeholder(label if whole else f"{label}_{i}")
                    node.meta.update(spans=(), inplace=False, source=label if whole else None)
                    self.bind(node, tensor)
                    names.append(node.name)
        return tuple(names)

    def assume(self, what: str = "") -> None:
        """Note that a value of a tensor was asked for, and where, with what it was answered."""
        spans = running_spans(self.code)
        self.asked.append(spans)
        self.assumed.append(f"{what}{spans[:1]}")

    def size_read(self) -> None:
        """Note where the code got a size of a tensor."""
        self.sized.add(running_spans(self.code))

    def record(
        self, op: str, target: Any, args: Any, kwargs: Any, result: Any, written: Any = ()
    ) -> None:
        """Add a node for a call already made and bind its result's tensors to it.

        Args:
            written: tensors whose data the call changed.
        """
        args, kwargs = _map(self.node_of, args), _map(self.node_of, kwargs)
        before = tuple(self.node_of(t) for t in written)
        name = (
            target.replace(".", "_") if op == "call_module" else None
        )  # as fx, which takes longer
        node = self.graph.create_node(op, target, name=name)
        node.args, node.kwargs = tuple(args), dict(kwargs)  # `create_node` looks at each part first
        node.meta["spans"] = running_spans(self.code)
        node.meta.update(inplace=bool(before), written=before)
        if isinstance(result, torch.Tensor):
            self.bind(node, result)
        else:
            node.meta["val"] = result
            self._bind_parts(node, result)
        for tensor, old in zip(written, before, strict=True):
            if self.nodes[id(tensor)][0] is old:  # later reads are of another value
                after = self.graph.call_function(after_write, (old, node))
                after.meta.update(spans=node.meta["spans"], inplace=False)
                self.bind(after, tensor)

    def _bind_parts(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, dict):
            items: list[tuple[Any, Any]] = list(result.items())
        elif isinstance(result, list | tuple):
            items = list(enumerate(result))
        else:
            return
        for key, part in items:
            if isinstance(part, torch.Tensor | list | tuple | dict):
                child = self.graph.call_function(_getitem, (node, key))
                child.meta.update(spans=node.meta["spans"], inplace=False, val=part)
                if isinstance(part, torch.Tensor):
                    self.bind(child, part)
                else:
                    self._bind_parts(child, part)


def _getitem(container: Any, key: Any) -> Any:
    return container[key]


def after_write(written: Any, call: Any) -> Any:
    """The value `written` has once `call` has changed its data."""
    return written


def constant_tensor() -> torch.Tensor:
    """Stands for a tensor made outside the traced module; its value is in the node's meta."""
    raise RuntimeError("a constant of a trace cannot be replayed")


@contextmanager
def _quiet_get_attr() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _map(function: Callable[[torch.Tensor], fx.Node], value: Any) -> Any:
    """The value with `function` of each tensor in it; fx nodes hold plain values only."""
    if value is None or value is False or value is True:
        return value
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple([_map(function, v) for v in value])
    if isinstance(value, list | tuple):
        return type(value)([_map(function, v) for v in value])
    if isinstance(value, dict):
        return {k: _map(function, v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(_map(function, v) for v in (value.start, value.stop, value.step)))
    if value is ... or isinstance(value, _NODE_VALUES):
        return value
    return f"<{type(value).__name__}>"
