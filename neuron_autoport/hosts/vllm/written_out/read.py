"""Attention that is written out in a forward: `softmax(f(q @ k.T)) @ v`, found in the graph of its class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from neuron_autoport.hosts.vllm.written_out.known import name_of
from neuron_autoport.trace.canonical import activation_of
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.spans import Span

PRODUCTS = frozenset(("matmul", "bmm", "baddbmm"))


class NotPlain(Exception):
    """Attention that the interface cannot be asked for. span: the operation that is to blame."""

    def __init__(self, why: str, span: Span | None = None) -> None:
        super().__init__(f"{why} at {span.short()}" if span is not None else why)


@dataclass(frozen=True)
class WrittenOut:
    """The nodes of one attention.

    scores: the product of queries and keys. before: from there to the softmax. after: from there to the product with
    the values, which is `output`. Both in the order they run, neither holding `scores`, `softmax` or `output`.
    """

    scores: fx.Node
    before: tuple[fx.Node, ...]
    softmax: fx.Node
    after: tuple[fx.Node, ...]
    output: fx.Node


def find_written_out(trace: ModuleTrace) -> WrittenOut | None:
    """The attention that a class writes out; None if there is none.

    Raises:
        NotPlain: there is one, and it is not the plain one.
    """
    identity = _identities(trace)
    dims = _softmax_dims(trace)
    found = [w for node in dims for w in _around(node)]
    if not found:
        return None
    if len(found) > 1:
        raise NotPlain(f"{len(found)} attentions in one forward", span_of(found[1].softmax))
    (one,) = found
    _check_softmax(one, dims[one.softmax])
    for node in (*one.before, *one.after):
        if node.op == "call_module" and node not in identity:
            raise NotPlain(f"the module `{node.target}` stands in its scores", span_of(node))
    _check_read_elsewhere(one)
    return one


def span_of(node: fx.Node) -> Span | None:
    """The innermost source expression of a node."""
    spans = node.meta.get("spans", ())
    return spans[-1] if spans else None


def _identities(trace: ModuleTrace) -> set[fx.Node]:
    """Calls of modules that change nothing, such as an idle dropout."""
    calls = iter(trace.children)
    nodes = [n for n in trace.graph.nodes if n.op == "call_module"]
    return {n for n in nodes if activation_of(next(calls).trace) == "identity"}


def _softmax_dims(trace: ModuleTrace) -> dict[fx.Node, Any]:
    """The softmaxes of a forward with the axis of each; also those in a module of their own."""
    calls = iter(trace.children)
    found: dict[fx.Node, Any] = {}
    for node in trace.graph.nodes:
        one = node
        if node.op == "call_module":
            inner = next(calls).trace.graph.nodes
            work = [n for n in inner if n.op not in ("placeholder", "output")]
            one = work[0] if len(work) == 1 else node
        if one.op == "call_function" and name_of(one) == "softmax":
            found[node] = one.kwargs.get("dim", one.args[1] if len(one.args) > 1 else None)
    return found


def _around(softmax: fx.Node) -> Iterator[WrittenOut]:
    """The attention of one softmax, if it is that of one: a product above, a product below."""
    above = list(_nearest(softmax, lambda n: list(n.all_input_nodes)))
    below = [n for n in _nearest(softmax, lambda n: list(n.users)) if _is_product(n)]
    if not above or not below:
        return
    if len(above) > 1:
        raise NotPlain("its scores are the sum of several products", span_of(above[1]))
    if len(below) > 1:
        raise NotPlain("its weights are used in several products", span_of(below[1]))
    scores, output = above[0], below[0]
    before, after = _between(scores, softmax), _between(softmax, output)
    weights = output.args[0] if output.args else None
    if weights is not softmax and weights not in after:
        raise NotPlain(f"`{name_of(output)}` does not take the weights first", span_of(output))
    yield WrittenOut(scores, before, softmax, after, output)


def _is_product(node: fx.Node) -> bool:
    return node.op == "call_function" and name_of(node) in PRODUCTS


def _nearest(start: fx.Node, step: Callable[[fx.Node], list[fx.Node]]) -> Iterator[fx.Node]:
    """Products that a walk meets first."""
    todo, seen = step(start), {start}
    while todo:
        node = todo.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if _is_product(node):
            yield node
        elif node.op == "call_function" or node.op == "call_module":
            todo += step(node)


def _between(first: fx.Node, last: fx.Node) -> tuple[fx.Node, ...]:
    """Nodes that depend on `first` and that `last` depends on, in order."""
    after: set[fx.Node] = {first}
    nodes = list(first.graph.nodes)
    span = nodes[nodes.index(first) + 1 : nodes.index(last)]
    for node in span:
        if any(n in after for n in node.all_input_nodes):
            after.add(node)
    needed: set[fx.Node] = {last}
    for node in reversed(span):
        if any(u in needed for u in node.users):
            needed.add(node)
    return tuple(n for n in span if n in after and n in needed)


def _check_softmax(one: WrittenOut, dim: Any) -> None:
    """Over the keys: the last axis."""
    if dim not in (-1, one.softmax.meta["val"].dim() - 1):
        raise NotPlain("the softmax is not over the keys", span_of(one.softmax))


def _check_read_elsewhere(one: WrittenOut) -> None:
    """Scores and weights must serve this attention only; the weights may leave the module beside."""
    inside = {one.scores, *one.before, one.softmax, *one.after, one.output}
    for node in (one.scores, *one.before, one.softmax, *one.after):
        late = node is one.softmax or node in one.after
        for user in node.users:
            if user not in inside and not (late and _only_leaves(user)):
                span = span_of(user) or span_of(node)
                raise NotPlain(f"`{name_of(node)}` is also read by other code", span)


def _only_leaves(node: fx.Node) -> bool:
    """Is this the output, or a view on the way to it?"""
    if node.op == "output":
        return True
    plain = name_of(node) in ("view", "reshape", "detach", "dropout", "to")
    return plain and all(_only_leaves(u) for u in node.users)
