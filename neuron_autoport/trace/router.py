"""How a mixture of experts routes, read from the graph by operations only.

From the two tensors an experts module is given, weights [T, K] and indices [T, K], back to the logits. Every
operation on the way must belong to the formula

    s = score(logits [+ soft-cap])            softmax, sigmoid, sqrt(softplus), or none
    chosen = top_k(mask_groups(s + bias))     bias only chooses; groups keep the best of n_group
    w = s[chosen]                             or score(top-k logits): score after top-k
    w = w / (sum(w) + eps) * scale * expert_scale[chosen]

else `UnknownRouting` says which one does not, and where. Nothing is read from names or configurations.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_autoport.trace.groups import Groups
from neuron_autoport.trace.inline import source_of
from neuron_autoport.trace.ops import Op, ancestry
from neuron_autoport.trace.router_walk import (
    Weights,
    choice,
    dtype_name,
    linear_under,
    score_of,
    scores_of,
    soft_cap_of,
    top_k_of,
    walk_weights,
)
from neuron_autoport.trace.routing import uncast, unknown

SCORES = ("softmax", "sigmoid", "sqrt_softplus")


@dataclass(frozen=True)
class RouterFacts:
    """One router. T tokens, E experts, K chosen ones.

    experts, top_k: E and K. score: one of `SCORES`, or `none`. score_after_top_k: the score is computed of the K
    chosen logits, not of all E. renormalize: the K weights are divided by their sum; `eps` is added to
    the sum, or is its least value where `eps_is_floor`. scale: constant factor at the end.
    bias: path of the [E] tensor that is added to the scores for choosing only. expert_scale: path of an [E]
    tensor the weights are multiplied by. groups: only experts of the best groups can be chosen.
    soft_cap: c of c * tanh(logits / c). score_dtype: the score is computed in it; dtype: of the weights given
    to the experts. weight, weight_layout, weight_bias: of the linear map that makes the logits.
    reads_hidden: that map is applied to the block's input itself. weights_on: `output` or `input` of an
    expert, where its weight is multiplied.
    """

    experts: int
    top_k: int
    score: str
    score_after_top_k: bool
    renormalize: bool
    eps: float
    eps_is_floor: bool
    scale: float
    bias: str | None
    expert_scale: str | None
    groups: Groups | None
    soft_cap: float | None
    score_dtype: str
    dtype: str
    weight: str
    weight_layout: str
    weight_bias: str | None
    reads_hidden: bool
    weights_on: str = "output"

    def summary(self) -> str:
        """`softmax, top 2 of 8, renormalized`: what `inspect` prints."""
        top = f"top {self.top_k} of {self.experts}"
        parts = [top, self.score] if self.score_after_top_k else [self.score, top]
        if self.groups is not None:
            parts.append(f"in {self.groups.kept} of {self.groups.count} groups")
        if self.bias is not None:
            parts.append("chosen with a bias")
        if self.renormalize:
            parts.append("renormalized")
        if self.scale != 1.0:
            parts.append(f"× {self.scale:g}")
        if self.expert_scale is not None:
            parts.append("× a factor per expert")
        if self.soft_cap is not None:
            parts.append(f"logits capped at {self.soft_cap:g}")
        if self.weights_on == "input":
            parts.append("on the experts' input")
        return ", ".join(parts)


def read_router(weights: Op, indices: Op, hidden: Op | None = None) -> RouterFacts:
    """The router behind these two tensors.

    Args:
        weights, indices: [T, K] each, of one inlined graph. hidden: the block's input, to tell
        whether the logits are a linear map of it.

    Raises:
        UnknownRouting: with the operation that is in no known formula, and its place.
    """
    chosen = uncast(indices)
    picked = top_k_of(chosen)
    found = walk_weights(weights, chosen)
    scores = scores_of(found.op, picked, chosen)
    bias, groups = choice(picked, scores)
    return _facts(weights, picked, found, scores, bias, groups, hidden)


def reach(indices: Op, weights: Op | None = None) -> int | None:
    """How many experts these indices can name: the width of what they are chosen from. None if not known.

    Args:
        weights: given with them. If scores are gathered with these very indices, wherever they are from, they
            name no more experts than there are scores: the gather would fail.
    """
    op = uncast(indices)
    if op.name == "getitem" and op.attrs["key"] == "1" and op.inputs[0].name in ("topk", "max"):
        picked = op.inputs[0]
        return int(picked.inputs[0].shape[-1]) if picked.attrs["dim"] == -1 else None
    if op.name in ("cat", "stack") and op.inputs:
        parts = [reach(i) for i in op.inputs]
        known = [p for p in parts if p is not None]
        return max(known) if len(known) == len(parts) else None
    if op.name == "masked_fill":
        return _reach_without(op)
    gathered = [o for o in ancestry(weights) if o.name == "gather"] if weights is not None else []
    widths = [o.inputs[0].shape[-1] for o in gathered
              if o.attrs["dim"] == -1 and uncast(o.inputs[1]) is op]  # fmt: skip
    return int(min(widths)) if widths else None


def _reach_without(op: Op) -> int | None:
    """The reach of indices whose last expert is replaced by another: i.masked_fill(i == last, fill)."""
    value, mask, fill = op.inputs
    before = reach(value)
    mask = uncast(mask)
    replaced = mask.name == "unknown:__eq__" and uncast(mask.inputs[0]) is uncast(value)
    if before is None or not isinstance(fill, int) or not 0 <= fill < before:
        return None
    last = replaced and mask.inputs[1] == before - 1
    return before - 1 if last and fill < before - 1 else before


def read_dense_router(weights: Op, hidden: Op | None = None) -> RouterFacts:
    """A router whose weights are [T, E], zero for all experts but the K best.

    score(x) where x has the K largest logits and -inf elsewhere; score(-inf) must be 0.

    Raises:
        UnknownRouting: it is no such router.
    """
    op = uncast(weights)
    if op.name not in ("sigmoid", "softmax") or op.attrs.get("dim", -1) != -1:
        raise unknown(op, "no score function makes the dense weights")
    spread = uncast(op.inputs[0])
    if spread.name != "scatter" or spread.attrs["dim"] != -1:
        raise unknown(spread, "the scored logits are not the chosen ones placed among -inf")
    base, index, values = spread.inputs
    base, index, values = uncast(base), uncast(index), uncast(values)
    if base.name != "full" or base.attrs["value"] != float("-inf"):
        raise unknown(base, "experts that were not chosen do not get -inf")
    picked = top_k_of(index)
    if values.name != "getitem" or values.inputs[0] is not picked or values.attrs["key"] != "0":
        raise unknown(values, "what is placed are not the largest logits")
    found = Weights(values, score=op.name, score_dtype=dtype_name(op))
    logits = source_of(picked.inputs[0])
    return _facts(weights, picked, found, logits, None, None, hidden)


def _facts(
    weights: Op,
    picked: Op,
    found: Weights,
    scores: Op,
    bias: str | None,
    groups: Groups | None,
    hidden: Op | None,
) -> RouterFacts:
    after = found.score is not None
    score, dtype, logits = (found.score, found.score_dtype, scores) if after else score_of(scores)
    logits, cap = soft_cap_of(uncast(logits))
    weight, layout, weight_bias, source = linear_under(logits)
    experts = int(picked.inputs[0].shape[-1])
    if logits.shape[-1] != experts:
        raise unknown(logits, f"{logits.shape[-1]} logits for {experts} experts")
    if groups is not None and groups.kept * (experts // groups.count) < picked.attrs["k"]:
        raise unknown(picked, "more experts are chosen than the kept groups have")
    return RouterFacts(
        experts=experts, top_k=int(picked.attrs["k"]), score=score or "none",
        score_after_top_k=after, renormalize=found.renormalize, eps=found.eps,
        eps_is_floor=found.eps_is_floor, scale=found.scale, bias=bias,
        expert_scale=found.expert_scale, groups=groups, soft_cap=cap, score_dtype=dtype,
        dtype=dtype_name(weights), weight=weight, weight_layout=layout, weight_bias=weight_bias,
        reads_hidden=hidden is not None and uncast(source) is uncast(hidden),
    )  # fmt: skip
