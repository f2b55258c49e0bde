"""The values of a traced model that need neither its tokens nor its weights: masks, tables, biases of positions.

The graph of every module runs on real tensors as far as its operands are known; the rest is `Unknown`, with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from neuron_autoport.trace.frame import constant_tensor
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.spans import Span

TOKENS, WEIGHTS = "the tokens", "the weights"
_RUN_ERRORS = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    NotImplementedError,
)


@dataclass(frozen=True)
class Unknown:
    """A value that cannot be told. of: what it is made from. span: where it comes from."""

    of: str
    span: Span | None = None


Values = dict[fx.Node, Any]


def known_values(
    trace: ModuleTrace, model: nn.Module, see: Callable[[str, ModuleTrace, Values], None]
) -> None:
    """Run a traced model as far as its values are known.

    Args:
        trace: of the whole model. model: the same model, its buffers real. see: gets path, trace and values of every
        module call.
    """
    given = [Unknown(TOKENS)] * len(trace.inputs)
    _Run(model, see).module("", trace, given)


@dataclass(frozen=True)
class _Run:
    model: nn.Module
    see: Callable[[str, ModuleTrace, Values], None]

    def module(self, path: str, trace: ModuleTrace, given: list[Any]) -> Any:
        """The result of one module call, its tensors replaced by values."""
        values: Values = {}
        inputs, calls = iter(given), iter(trace.children)
        result: list[Any] = []
        for node in trace.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(inputs, Unknown(TOKENS))
            elif node.op == "get_attr":
                values[node] = self.state(path, str(node.target))
            elif node.op == "call_module":
                values[node] = self.child(path, node, next(calls).trace, values)
            elif node.op == "output":
                result = [values.get(n, Unknown(TOKENS)) for n in node.args[0]]
            else:
                values[node] = run_node(node, values)
        self.see(path, trace, values)
        made = iter(result)
        return pytree.tree_map_only(
            torch.Tensor, lambda _: next(made, Unknown(TOKENS)), trace.result
        )

    def state(self, path: str, name: str) -> Any:
        """A buffer; parameters are weights."""
        owner_path, _, own = f"{path}.{name}".strip(".").rpartition(".")
        owner = self.model.get_submodule(owner_path)
        value = owner._buffers.get(own)
        if value is None or value.device.type == "meta":
            return Unknown(WEIGHTS)
        return value.clone()

    def child(self, path: str, node: fx.Node, trace: ModuleTrace, values: Values) -> Any:
        inner = f"{path}.{node.target}".strip(".")
        given = [values.get(n, Unknown(TOKENS)) for n in _given_nodes(trace, node)]
        if len(given) != len(trace.inputs):  # it was handed a state of its own
            given = [Unknown(TOKENS)] * len(trace.inputs)
        made = self.module(inner, trace, given)
        return Unknown(TOKENS) if made is None else made


def _given_nodes(trace: ModuleTrace, node: fx.Node) -> list[fx.Node]:
    """The nodes that a call hands to a module, in the order of its inputs."""
    signature = inspect.signature(inspect.unwrap(trace.module_class.forward))
    try:
        bound = list(signature.bind(None, *node.args, **node.kwargs).arguments.values())[1:]
    except TypeError:
        bound = [*node.args, *node.kwargs.values()]
    leaves = pytree.tree_leaves(bound)
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def run_node(node: fx.Node, values: Values) -> Any:
    """One call on known values, in place where it is in place.

    With an unknown value nothing runs; what it would have written to is then unknown as well.
    """
    span = next(iter(node.meta.get("spans", ())), None)
    if node.target is constant_tensor:
        return Unknown("a value from outside the module", span)
    operands = list(_nodes_in((node.args, node.kwargs)))
    unknown = next(
        (u for n in operands if (u := _unknown_in(values.get(n, Unknown(TOKENS))))), None
    )
    if unknown is None:
        try:
            args, kwargs = _filled(node.args, values), _filled(node.kwargs, values)
            with torch.no_grad():
                made = node.target(*args, **kwargs)  # type: ignore[operator]
            return args[0] if made is None else made  # `x[i] = y` stands for x after it
        except _RUN_ERRORS as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            unknown = Unknown(f"`{name_of(node)}`, which does not run ({reason})", span)
    for written in node.meta.get("written", ()):
        _forget(values, values.get(written), unknown)
    return unknown


def name_of(node: fx.Node) -> str:
    """What a node calls, as one would name it."""
    return str(getattr(node.target, "__name__", node.target)).strip("_")


def _forget(values: Values, written: Any, unknown: Unknown) -> None:
    """Everything in the memory of a tensor that was written to with unknown values."""
    if not isinstance(written, torch.Tensor):
        return
    storage = written.untyped_storage()._cdata
    for node, value in list(values.items()):
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == storage:
            values[node] = unknown


def _nodes_in(value: Any) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, slice):
        yield from _nodes_in((value.start, value.stop, value.step))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _nodes_in(part)
    elif isinstance(value, dict):
        yield from _nodes_in(list(value.values()))


def _unknown_in(value: Any) -> Unknown | None:
    return next((v for v in pytree.tree_leaves(value) if isinstance(v, Unknown)), None)


def _filled(value: Any, values: Values) -> Any:
    """Arguments with values for nodes, on the CPU instead of the meta device."""
    if isinstance(value, fx.Node):
        return values[value]
    if isinstance(value, slice):
        return slice(*(_filled(v, values) for v in (value.start, value.stop, value.step)))
    if isinstance(value, tuple):
        return tuple(_filled(v, values) for v in value)
    if isinstance(value, list):
        return [_filled(v, values) for v in value]
    if isinstance(value, dict):
        return {k: _filled(v, values) for k, v in value.items()}
    on_meta = (isinstance(value, torch.device) and value.type == "meta") or value == "meta"
    return torch.device("cpu") if on_meta else value
