"""Is an attention class exactly what NF's fused calls compute? Read from its canonical graph.

They are QKV, per-head RMS norm before or after RoPE, half-split RoPE over whole heads, attention, output
projection: all in `NF.attention_decode`, else the first three in `NF.qkv_proj`. Each of these is looked for by its
operations, backwards from the attention call; anything else in between is a reason why the class keeps its own
forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neuron_autoport.fused import FusedWeight
from neuron_autoport.hosts.neuron.rotation import rotation, under
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.ops import Op

Path = tuple[Any, ...]


class NotThis(Exception):
    """The class is something else; the message says what."""


@dataclass(frozen=True)
class HeadNorm:
    """Per-head RMS norms of query and key: module names, epsilon, and whether RoPE comes later."""

    query: str
    key: str
    eps: float
    before_rope: bool


@dataclass(frozen=True)
class AttentionForm:
    """How to call the functions for a class.

    hidden, cos, sin: where the forward's arguments hold them (`args` or `kwargs`, then keys); cos is None
    without RoPE. qkv, out: attribute stems of the fused weights. softcap: c of c * tanh(scores / c), with which no
    step is one call. sinks: name of that parameter.
    returns: what the forward returns, with None in the place of the result.
    """

    hidden: Path
    cos: Path | None
    sin: Path | None
    norm: HeadNorm | None
    qkv: FusedWeight
    out: FusedWeight
    scale: float
    softcap: float | None
    sinks: str | None
    result: Any


def read_attention_form(plan: ClassPlan, child: Callable[[str], ClassPlan | None]) -> AttentionForm:
    """The form of an attention class.

    Args:
        plan: of the class. child: the plan of one of its child modules by name.

    Raises:
        NotThis: it is not what the function computes.
    """
    calls = [op for op in plan.graph.ops if op.name == "attention"]
    if len(calls) != 1 or len(plan.graph.outputs) != 1:
        raise NotThis("it is not one attention call with one result")
    call = calls[0]
    qkv, out = _weights(plan)
    _check_output(plan, call, out)
    query, key = (_Head(plan, child, op).read() for op in call.inputs[:2])
    value = _Head(plan, child, call.inputs[2]).read()
    if value.norm is not None or value.rope is not None:
        raise NotThis("the value is normalized or rotated")
    if query.rope != key.rope:
        raise NotThis("query and key are not rotated alike")
    norm = _norm(query, key)
    hidden = _hidden(plan, qkv)
    cos, sin = query.rope or (None, None)
    sinks = call.attrs.get("s_aux")
    if sinks is not None and sinks.name != "param":
        raise NotThis("the sinks are computed")
    scale, softcap = call.attrs.get("scaling"), call.attrs.get("softcap")
    return AttentionForm(
        place_of(plan, hidden),
        None if cos is None else place_of(plan, cos),
        None if sin is None else place_of(plan, sin),
        norm,
        qkv,
        out,
        call.inputs[0].shape[-1] ** -0.5 if scale is None else float(scale),
        float(softcap) if softcap else None,
        None if sinks is None else sinks.target,
        result_of(plan),
    )


def _weights(plan: ClassPlan) -> tuple[FusedWeight, FusedWeight]:
    weights = [w for site in plan.sites for w in site.weights]
    qkv = [w for w in weights if w.shard == "heads"]
    out = [w for w in weights if w.shard == "row"]
    if len(qkv) != 1 or len(out) != 1 or len(weights) != 2:
        raise NotThis("its projections are not rewritten to one QKV and one output product")
    return qkv[0], out[0]


def _check_output(plan: ClassPlan, call: Op, out: FusedWeight) -> None:
    op = under(plan.graph.outputs[0])
    if op.name != "module" or op.target != out.parts[0].module:
        raise NotThis(f"{op.label} stands after the output projection")
    before = under(op.inputs[0])
    if before is not call:
        raise NotThis(f"{before.label} stands between attention and the output projection")


def _norm(query: _Head, key: _Head) -> HeadNorm | None:
    if query.norm is None and key.norm is None:
        return None
    if query.norm is None or key.norm is None:
        raise NotThis("only one of query and key is normalized")
    if query.norm[1:] != key.norm[1:]:
        raise NotThis("query and key are not normalized alike")
    return HeadNorm(query.norm[0], key.norm[0], query.norm[1], query.norm[2])


def _hidden(plan: ClassPlan, qkv: FusedWeight) -> Op:
    """The value all projections read."""
    paths = {p.module for p in qkv.parts}
    read = {op.inputs[0] for op in plan.graph.ops if op.name == "module" and op.target in paths}
    if len(read) != 1 or (hidden := read.pop()).name != "input":
        raise NotThis("the projections read something that is computed first")
    return hidden


class _Head:
    """The way from an operand of the attention call back to its projection.

    rope: (cos, sin) inputs, or None. norm: (module, epsilon, before the rotation), or None.
    """

    def __init__(self, plan: ClassPlan, child: Callable[[str], ClassPlan | None], op: Op) -> None:
        self.plan, self.child, self.op = plan, child, op
        self.width = op.shape[-1]
        self.rope: tuple[Op, Op] | None = None
        self.norm: tuple[str, float, bool] | None = None

    def read(self) -> _Head:
        sources = {p.module for w in _weights(self.plan)[:1] for p in w.parts}
        op, turns = self.op, 0
        while not (op.name == "module" and op.target in sources):
            if op.name in ("view", "cast", "slice", "pieces", "getitem"):
                op = op.inputs[0]
            elif op.name == "permute" and tuple(op.attrs["order"]) == (-4, -2, -3, -1):
                op, turns = op.inputs[0], turns + 1
            elif op.name == "module" and self.norm is None:
                self.norm = (str(op.target), self._eps(op), self.rope is None)
                op = op.inputs[0]
            elif self.rope is None and (found := rotation(op)) is not None:
                op, cos, sin = found
                self.rope = (cos, sin)
            else:
                raise NotThis(
                    f"{op.label} stands between projection and attention, and is no half-split rotation"
                )
        if turns != 1:
            raise NotThis("heads and tokens are not exchanged once")
        if self.norm is not None:  # read backwards: a norm met after the rotation came before it
            self.norm = (*self.norm[:2], not self.norm[2])
        return self

    def _eps(self, op: Op) -> float:
        """Epsilon of a child that is an RMS norm over one head."""
        plan = self.child(str(op.target))
        sites = plan.sites if plan is not None else ()
        if len(sites) != 1 or sites[0].rule.role != "rms_norm" or op.shape[-1] != self.width:
            raise NotThis(f"{op.label} is no RMS norm over a head")
        eps = sites[0].match.values.get("eps")
        if not isinstance(eps, int | float):
            raise NotThis(f"the epsilon of {op.label} is not a number")
        return float(eps)


def place_of(plan: ClassPlan, op: Op) -> Path:
    """Where the traced call held this input."""
    value = op.node.meta.get("val") if op.node is not None else None
    args, kwargs = plan.trace.call
    for kind, given in (("args", list(args)), ("kwargs", kwargs)):
        for keys, leaf in pytree.tree_flatten_with_path(given)[0]:
            if leaf is value:
                return (kind, *(_key(k) for k in keys))
    raise NotThis(f"{op.label} is no argument of its own")


def _key(key: Any) -> Any:
    return key.idx if isinstance(key, pytree.SequenceKey) else key.key


def result_of(plan: ClassPlan) -> Any:
    """What the forward returns, the tensor replaced by True."""
    leaves = pytree.tree_leaves(plan.trace.result)
    if sum(isinstance(x, torch.Tensor) for x in leaves) != 1 or any(
        x is not None and not isinstance(x, torch.Tensor) for x in leaves
    ):
        raise NotThis("it returns more than one tensor")
    return pytree.tree_map_only(torch.Tensor, lambda _: True, plan.trace.result)


def pick_argument(path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument at a place of `AttentionForm`."""
    value: Any = args if path[0] == "args" else kwargs
    for key in path[1:]:
        value = value[key]
    return value


def fill_result(result: Any, tensor: torch.Tensor) -> Any:
    """The forward's result with the tensor in its place."""
    if result is True:
        return tensor
    if isinstance(result, tuple):
        return tuple(fill_result(x, tensor) for x in result)
    return result
