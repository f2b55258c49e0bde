"""A mixture-of-experts block: its experts, its router, and what else it adds to the output.

A block is any module that calls experts: a child given rows, integer indices and a weight for each (the
interface of transformers' experts), or one whose own graph is a product with a weight per expert.
What cannot be read is a reason, never a guess.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from neuron_autoport.trace.experts import ExpertsFacts, read_experts
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.inline import inlined, source_of
from neuron_autoport.trace.module_trace import ChildCall, ModuleTrace
from neuron_autoport.trace.ops import Op, ancestry, is_float
from neuron_autoport.trace.router import RouterFacts, reach, read_dense_router, read_router
from neuron_autoport.trace.routing import UnknownRouting, uncast, unknown

Part: TypeAlias = Literal["router", "experts", "shared"]


@dataclass(frozen=True)
class SharedFacts:
    """An expert that every token goes through. modules: paths of its linear maps. gate: path of the linear
    map whose sigmoid multiplies its output, or None."""

    modules: tuple[str, ...]
    gate: str | None

    def summary(self) -> str:
        return "shared expert, gated" if self.gate else "shared expert"


@dataclass(frozen=True)
class MoEFacts:
    """One block. `experts_path`: of the experts module below it.

    router, experts, shared: what was read, or the reason why not; shared is None if nothing is added.
    arguments: names, in the experts' forward, of rows [T, H], indices [T, K] and weights [T, K]; None
    for experts that are not told who chose them.
    top_k: K. reach: how many experts the indices can name, None if not known.
    output_scale: constant the routed output is multiplied by before anything is added.
    """

    experts_path: str
    router: RouterFacts | UnknownRouting
    experts: ExpertsFacts | UnknownRouting
    shared: SharedFacts | UnknownRouting | None
    arguments: tuple[str, str, str] | None
    top_k: int | None
    reach: int | None
    output_scale: float

    def summary(self) -> str:
        """`softmax, top 2 of 8, renormalized; 8 experts 64→96→64, act=silu, gate|up`."""
        parts = [_text(self.router, "router"), _text(self.experts, "experts")]
        if self.output_scale != 1.0:
            parts.append(f"output × {self.output_scale:g}")
        if self.shared is not None:
            parts.append(_text(self.shared, "what is added"))
        return "; ".join(parts)

    def unread(self) -> tuple[tuple[Part, UnknownRouting], ...]:
        """(part, reason) of every part that was not understood."""
        parts: tuple[tuple[Part, object], ...] = (
            ("router", self.router), ("experts", self.experts), ("shared", self.shared),
        )  # fmt: skip
        return tuple((n, p) for n, p in parts if isinstance(p, UnknownRouting))


def _text(part: Any, name: str) -> str:
    if isinstance(part, UnknownRouting):
        return f"{name} not understood: {part.message}"
    text: str = part.summary()
    return text


def experts_of(trace: ModuleTrace) -> ChildCall | None:
    """The call of experts a module makes, or None; None too if it makes several."""
    found = [c for c in trace.children if "." not in c.path and is_experts(c.trace)]
    return found[0] if len(found) == 1 else None


def is_experts(trace: ModuleTrace) -> bool:
    """Are these the experts of a block: told who chose them, or all of them on every token?"""
    if _arguments(trace) is not None:
        return True
    weights = any(n.op == "get_attr" and n.meta["val"].ndim == 3 for n in trace.graph.nodes)
    return weights and trace.end is None and _is_dense(trace)


def _arguments(trace: ModuleTrace) -> tuple[str, str, str] | None:
    """Names of rows, indices [T, K] and weights [T, K], if these three are what it was called with."""
    tensors = _given(trace)
    whole = [n for n, t in tensors.items() if t.dtype in (torch.int64, torch.int32)]
    if len(tensors) != 3 or len(whole) != 1 or len(tensors[whole[0]].shape) != 2:
        return None
    shape = tensors[whole[0]].shape
    real = [n for n, t in tensors.items() if t.is_floating_point()]
    weights = [n for n in real if tensors[n].shape == shape][-1:]
    rows = [n for n in real if n not in weights]
    return (rows[0], whole[0], weights[0]) if len(real) == 2 and weights else None


def _given(trace: ModuleTrace) -> dict[str, torch.Tensor]:
    """The tensors a module was traced with, by their names in its forward."""
    names = list(inspect.signature(trace.forward).parameters)[1:]
    positional, keywords = trace.call
    given = {**dict(zip(names, positional, strict=False)), **keywords}
    return {n: t for n, t in given.items() if isinstance(t, torch.Tensor)}


def _is_dense(trace: ModuleTrace) -> bool:
    try:
        return read_experts(trace).dense
    except UnknownRouting:
        return False


def read_blocks(trace: ModuleTrace) -> dict[str, MoEFacts]:
    """Every block of a traced model by its dotted path; each class is read once."""
    known: dict[ModuleTrace, MoEFacts | None] = {}
    found: dict[str, MoEFacts] = {}
    for path, part in trace.walk():
        if part not in known:
            known[part] = read_moe(part)
        facts = known[part]
        if facts is not None:
            found.setdefault(path, facts)
    return found


def read_moe(trace: ModuleTrace) -> MoEFacts | None:
    """The block a traced module is, or None if it calls no experts."""
    call = experts_of(trace)
    if call is None:
        return None
    experts: ExpertsFacts | UnknownRouting
    try:
        experts = read_experts(call.trace)
    except UnknownRouting as reason:
        experts = reason
    if trace.end is not None:
        ended = UnknownRouting(f"not traced to its end: {trace.end.message}", None, trace.end.code)
        return MoEFacts(call.path, ended, experts, ended, None, None, None, 1.0)
    outputs = inlined(trace, keep=lambda child: child is call.trace)
    leaf = next((op for op in _everything(outputs) if op.trace is call.trace), None)
    if leaf is None:
        lost = UnknownRouting("the output does not depend on the experts")
        return MoEFacts(call.path, lost, experts, lost, None, None, None, 1.0)
    names = _arguments(call.trace)
    top_k = int(_given(call.trace)[names[1]].shape[1]) if names else None
    wide = reach(*(_bound(leaf)[n] for n in names[1:])) if names else None
    try:
        router: RouterFacts | UnknownRouting = _router(leaf, experts, names)
    except UnknownRouting as reason:
        router = reason
    try:
        scale, shared = _around(outputs, leaf)
    except UnknownRouting as reason:
        return MoEFacts(call.path, router, experts, reason, names, top_k, wide, 1.0)
    return MoEFacts(call.path, router, experts, shared, names, top_k, wide, scale)


def _everything(outputs: tuple[Op, ...]) -> Iterator[Op]:
    for output in outputs:
        if isinstance(output, Op):
            yield from ancestry(output)


def _bound(leaf: Op) -> dict[str, Any]:
    """What the experts are called with, by the names of their forward."""
    order = list(inspect.signature(leaf.trace.forward).parameters)[1:]
    keywords: dict[str, Any] = leaf.attrs.get("kwargs", {})
    return dict(zip(order, leaf.inputs, strict=False)) | keywords


def _router(
    leaf: Op, experts: ExpertsFacts | UnknownRouting, names: tuple[str, str, str] | None
) -> RouterFacts:
    given = [i for i in leaf.inputs if isinstance(i, Op)]
    if names is not None:
        bound = _bound(leaf)
        hidden, indices, weights = (bound[n] for n in names)
        return read_router(weights, indices, hidden)
    rows = source_of(given[0])
    if isinstance(experts, UnknownRouting) or len(given) != 1 or rows.name != "mul":
        raise unknown(leaf, "the experts are given neither indices nor weighted rows")
    copied, spread = rows.inputs
    weights = uncast(spread)
    if weights.name != "permute" or weights.attrs["order"] != (-1, -2):
        raise unknown(rows, "the rows are not multiplied by one weight per expert")
    count = experts.experts
    repeated = source_of(copied)
    if repeated.name != "unknown:repeat" or repeated.inputs[1:] not in ((count, 1), ((count, 1),)):
        raise unknown(rows, "the experts are not given one copy of all tokens each")
    facts = read_dense_router(weights.inputs[0], source_of(repeated.inputs[0]))
    return replace(facts, weights_on="input")


def _around(outputs: tuple[Op, ...], leaf: Op) -> tuple[float, SharedFacts | None]:
    """(factor, shared expert) between the experts and the block's output."""
    holding = [o for o in outputs if leaf in ancestry(o)]
    op, scale = uncast(holding[0]), 1.0
    shared: SharedFacts | None = None
    while op is not leaf:
        if op.name == "add" and shared is None and all(isinstance(i, Op) for i in op.inputs):
            sides = [leaf in ancestry(i) for i in op.inputs]
            if sides.count(True) != 1:
                raise unknown(op, "the experts' output is on both sides of a sum")
            shared = _shared(op.inputs[sides.index(False)])
            op = uncast(op.inputs[sides.index(True)])
        elif op.name == "mul" and is_float(op.inputs[1]) and shared is None:
            raise unknown(op, "the output is scaled after the experts")
        elif op.name == "mul" and is_float(op.inputs[1]):
            scale *= float(op.inputs[1])
            op = uncast(op.inputs[0])
        elif op.name == "sum" and op.attrs["dim"] == -3 and uncast(op.inputs[0]) is leaf:
            op = leaf  # dense experts: summed over the experts
        else:
            raise unknown(op, f"`{op.label}` stands between the experts and the output")
    return scale, shared


def _shared(op: Op) -> SharedFacts:
    """The shared expert this value is."""
    op, gate = uncast(op), None
    if op.name == "mul":
        for one, other in (op.inputs, op.inputs[::-1]):
            inner = uncast(one) if isinstance(one, Op) else None
            if inner is not None and inner.name == "sigmoid" and inner.shape[-1] == 1:
                gated = uncast(inner.inputs[0])
                if _is_linear(gated):
                    gate, op = str(gated.target), uncast(other)
                    break
    linears = sorted(str(o.target) for o in ancestry(op) if _is_linear(o) and o.name == "module")
    if not linears:
        raise unknown(op, "what is added to the experts' output is no expert")
    return SharedFacts(tuple(linears), gate)


def _is_linear(op: Op) -> bool:
    return op.name == "module" and op.trace is not None and linear_of(op.trace) is not None
