"""A compile backend that looks at each graph the way the plugin's passes would, then runs it.

Refused: in-place operations other than index_put_, copy_, add_ and slice assignment; writes through
a boolean mask; sizes that are not constants; multinomial. Counted: plugin calls, collectives, other
operations. The graph's text is kept, so that ranks can be compared.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tests.neuron.double.args import ContractError
from tests.neuron.double.log import GraphSummary
from tests.neuron.double.op import GROUP, NAMESPACE
from tests.neuron.double.state import state

IN_PLACE = {"index_put_", "copy_", "add_"}
OTHER_OPERATORS = {"imul", "isub", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"}
REFUSED = {"multinomial", "nonzero", "item", "tolist"}
COLLECTIVES = ("all_reduce_", "all_gather", "reduce_scatter")


def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The compile backend: check, count, run as it is.

    Raises:
        ContractError: the plugin's passes could not take this graph.
    """
    summary = GraphSummary(state().log.step)
    for node in gm.graph.nodes:
        _check_node(node)
        _count(node, summary)
    code = re.sub(rf"{GROUP}\w+", GROUP, gm.code)
    summary.digest = hashlib.sha256(code.encode()).hexdigest()
    state().log.graphs.append(summary)
    run: Callable[..., Any] = gm.forward
    return run


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    packet = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", "")
    return str(packet or node.target)


def _check_node(node: fx.Node) -> None:
    if node.op == "placeholder":
        value = node.meta.get("example_value")
        symbolic = isinstance(value, torch.SymInt) or (
            isinstance(value, torch.Tensor)
            and any(isinstance(size, torch.SymInt) for size in value.shape)
        )
        if symbolic:
            raise ContractError(f"graph input {node.name} has a size that is not constant")
        return
    if node.op not in ("call_method", "call_function"):
        return
    name = _name(node)
    where = (node.meta.get("stack_trace") or "").strip().splitlines()[-2:]
    place = " ".join(line.strip() for line in where)
    if name in REFUSED:
        raise ContractError(f"{name} cannot be compiled for the device: {place}")
    if _is_other_in_place(node, name):
        raise ContractError(f"in-place {name} is not rewritten by the plugin's passes: {place}")
    if node.target is operator.setitem or name == "index_put_":
        _check_mask(node, place)


def _is_double(node: fx.Node) -> bool:
    """A plugin function, or one of the double's collectives."""
    return hasattr(node.target, "neuron_double") or NAMESPACE in str(node.target)


def _is_other_in_place(node: fx.Node, name: str) -> bool:
    if _is_double(node):
        return False
    if getattr(node.target, "__module__", "") == "_operator":
        return name in OTHER_OPERATORS
    return name.endswith("_") and not name.endswith("__") and name not in IN_PLACE


def _check_mask(node: fx.Node, place: str) -> None:
    index = node.args[1]
    parts = index if isinstance(index, (tuple, list)) else [index]
    for part in parts:
        value = part.meta.get("example_value") if isinstance(part, fx.Node) else None
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            raise ContractError(f"a write through a boolean mask: {place}")


def _count(node: fx.Node, summary: GraphSummary) -> None:
    if node.op not in ("call_method", "call_function"):
        return
    name = _name(node)
    if not _is_double(node):
        summary.tensor_ops[name] += 1
    elif any(each in str(node.target) for each in COLLECTIVES):
        summary.collectives[name] += 1
    else:
        summary.functions[name] += 1
