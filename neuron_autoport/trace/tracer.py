"""Value-guided tracing: one torch.fx graph per module class and configuration.

The model runs once on meta tensors. Every torch call is seen by a torch function mode, which runs it and
records a node: so sizes, dtypes and Python conditions on them are answered by real values, and
every node has a shape, a dtype and the source expression that made it. Child modules are leaves: a
call of one becomes a node, and the child is traced on its own, once per class, inputs and attribute
values (`ModuleTrace.holds_for`), however many layers repeat it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from neuron_autoport.trace.guards import input_signature, watch_reads
from neuron_autoport.trace.module_trace import ChildCall, ModuleTrace, TraceEnd
from neuron_autoport.trace.spans import running_spans

_session: Session | None = None
_NODE_VALUES = (fx.Node, str, int, float, bool, complex, torch.dtype, torch.device, torch.Size)


def active_session() -> Session | None:
    """The trace under way in this process, if any."""
    return _session


class CannotAnswer(Exception):
    """A Python value was asked of a tensor that has none."""


def forward_code(module: nn.Module) -> Any:
    """Code object of the function as written in the class, decorators taken off."""
    function = inspect.unwrap(type(module).forward)
    return getattr(function, "__code__", None)


class _Frame:
    """The recording of one module's forward."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.code = forward_code(root)
        self.graph = fx.Graph()
        self.nodes: dict[int, tuple[fx.Node, torch.Tensor]] = {}
        self.children: list[ChildCall] = []
        self.paths = {id(m): name for name, m in root.named_modules() if name}
        self.states: dict[int, str] = {}
        for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
            self.states.setdefault(id(tensor), name)
        self.assumed: list[str] = []

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that made `tensor`; states of the module and foreign tensors get one here."""
        known = self.nodes.get(id(tensor))
        if known is not None:
            return known[0]
        if id(tensor) in self.states:
            with _quiet_get_attr():
                node = self.graph.get_attr(self.states[id(tensor)])
        else:
            node = self.graph.create_node("call_function", constant_tensor, (), {})
        self.bind(node, tensor)
        return node

    def bind(self, node: fx.Node, tensor: torch.Tensor) -> None:
        node.meta["val"] = tensor
        self.nodes[id(tensor)] = (node, tensor)

    def record(
        self, op: str, target: Any, args: Any, kwargs: Any, result: Any, written: bool = False
    ) -> None:
        """Add a node for a call already made and bind its result's tensors to it."""
        to_nodes = lambda v: self.node_of(v) if isinstance(v, torch.Tensor) else v  # noqa: E731
        args, kwargs = (_map(to_nodes, a) for a in (args, kwargs))
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs))
        node.meta["spans"] = running_spans(self.code)
        node.meta["inplace"] = written
        if isinstance(result, torch.Tensor):
            self.bind(node, result)
            return
        node.meta["val"] = result
        self._bind_parts(node, result)

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


def constant_tensor() -> torch.Tensor:
    """Stands for a tensor made outside the traced module; its value is in the node's meta."""
    raise RuntimeError("a constant of a trace cannot be replayed")


@contextmanager
def _quiet_get_attr() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(_map(function, v) for v in value)
    if isinstance(value, list | tuple):
        return type(value)(_map(function, v) for v in value)
    if isinstance(value, dict):
        return {k: _map(function, v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(_map(function, v) for v in (value.start, value.stop, value.step)))
    mapped = function(value)
    if mapped is None or mapped is ... or isinstance(mapped, _NODE_VALUES):
        return mapped
    return f"<{type(mapped).__name__}>"  # fx nodes hold plain values only


class Session(TorchFunctionMode):
    """One run of a model under observation."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[_Frame] = []
        self.cache: dict[Any, list[ModuleTrace]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.stack:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name == "__bool__" and args[0].device.type == "meta":
            # No value to answer with: take the branch not taken, and say so. The source keeps both.
            self.stack[-1].assumed.append(str(running_spans(self.stack[-1].code)[:1]))
            return False
        if name in ("item", "tolist", "__int__", "__float__", "__index__") and (
            args[0].device.type == "meta"
        ):
            raise CannotAnswer(f"{name}() asks for the value of a tensor")
        result = func(*args, **kwargs)
        if _has_tensor(result):
            written = _writes(name, kwargs)
            self.stack[-1].record("call_function", func, args, kwargs, result, written)
        elif _writes(name, kwargs):
            self.stack[-1].record("call_function", func, args, kwargs, args[0], True)
        return result

    def leaf_call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run `function` unobserved and record it as one node."""
        frame = self.stack[-1]
        self.stack.append(_Frame(nn.Module()))
        try:
            result = function(*args, **kwargs)
        finally:
            self.stack.pop()
        frame.record("call_function", function, args, kwargs, result)
        return result

    def call_module(self, module: nn.Module, args: Any, kwargs: Any, call: Any) -> Any:
        """A module was called: a leaf if it belongs to the module being traced, else inlined."""
        frame = self.stack[-1]
        path = frame.paths.get(id(module))
        if path is None or module is frame.root:
            return call(module, *args, **kwargs)
        trace = self.trace(module, args, kwargs, call)
        if trace.end is not None:
            raise CannotAnswer(f"{type(module).__name__} ({path}): {trace.end.message}")
        result = pytree.tree_map_only(torch.Tensor, _fresh, trace.result)
        frame.record("call_module", path, args, kwargs, result)
        frame.children.append(ChildCall(path, trace))
        return result

    def trace(self, module: nn.Module, args: Any, kwargs: Any, call: Any) -> ModuleTrace:
        """The trace of `module` for these inputs, made now or found again."""
        key = (type(module), input_signature(args, kwargs))
        for known in self.cache.setdefault(key, []):
            if known.holds_for(module):
                return known
        made = self._record(module, args, kwargs, call)
        self.cache[key].append(made)
        return made

    def _record(self, module: nn.Module, args: Any, kwargs: Any, call: Any) -> ModuleTrace:
        frame = _Frame(module)
        inputs = _bind_inputs(frame, module, args, kwargs)
        self.stack.append(frame)
        result, end = None, None
        try:
            with watch_reads(module) as reads:
                result = call(module, *args, **kwargs)
        except CannotAnswer as reason:
            end = TraceEnd("AP101", str(reason), running_where(reason))
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
            message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            end = TraceEnd("AP102", message, running_where(error))
        finally:
            self.stack.pop()
        outputs = pytree.tree_leaves(result) if end is None else []
        returned = [frame.node_of(t) for t in outputs if isinstance(t, torch.Tensor)]
        frame.graph.output(tuple(returned))
        return ModuleTrace(
            module_class=type(module),
            forward=inspect.unwrap(type(module).forward),
            graph=frame.graph,
            inputs=inputs,
            reads=dict(reads),
            children=tuple(frame.children),
            result=result,
            end=end,
            assumed=tuple(frame.assumed),
            call=(tuple(args), dict(kwargs)),
        )


def running_where(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of the error that is neither torch's nor ours."""
    where, tb = None, error.__traceback__
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if "/torch/" not in file and "/neuron_autoport/trace/" not in file:
            where = f"{file}:{tb.tb_lineno}"
        tb = tb.tb_next
    return where


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.empty_like(tensor)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensor(v) for v in value)
    return isinstance(value, torch.Tensor)


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    if name in ("__setitem__", "__set__") or kwargs.get("out") is not None:
        return True
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__index__", "__int__", "__invert__")
    return name.endswith("_") and not name.endswith("__")


def _bind_inputs(frame: _Frame, module: nn.Module, args: Any, kwargs: Any) -> tuple[str, ...]:
    """Placeholders for every tensor argument, named as in the signature."""
    signature = inspect.signature(inspect.unwrap(type(module).forward))
    try:
        given = signature.bind(module, *args, **kwargs).arguments
    except TypeError:
        given = {f"arg{i}": a for i, a in enumerate(args)} | kwargs
    names = []
    for name, value in list(given.items())[1:]:
        parts = value.items() if isinstance(value, dict) else [(None, value)]
        for key, part in parts:
            label = name if key is None else str(key)
            for i, tensor in enumerate(pytree.tree_leaves(part)):
                if not isinstance(tensor, torch.Tensor) or id(tensor) in frame.states:
                    continue
                whole = tensor is part
                node = frame.graph.placeholder(label if whole else f"{label}_{i}")
                node.meta.update(spans=(), inplace=False, source=label if whole else None)
                frame.bind(node, tensor)
                names.append(node.name)
    return tuple(names)


def trace_model(module: nn.Module, args: Any = (), kwargs: Any = None) -> ModuleTrace:
    """Trace `module` called with these arguments, and every module it calls.

    Args:
        module: a module with parameters on the meta device.
        args, kwargs: what to call it with; tensors on the meta device.

    Returns:
        The trace of `module`; those of its children hang from it. `end` says why one is not whole.
    """
    global _session
    session = Session()
    original = nn.Module.__call__

    def observed(self: nn.Module, *a: Any, **k: Any) -> Any:
        return session.call_module(self, a, k, original)

    previous, _session = _session, session
    nn.Module.__call__ = observed  # type: ignore[method-assign]
    try:
        with torch.no_grad(), session:
            return session.trace(module, args, kwargs or {}, original)
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        _session = previous
