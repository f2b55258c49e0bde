"""The walk from what an experts module is given back to the logits: one function for each step of the formula."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.groups import Groups, read_groups
from neuron_autoport.trace.inline import source_of
from neuron_autoport.trace.ops import Op, is_float
from neuron_autoport.trace.routing import same, unbool, uncast, unknown


@dataclass
class Weights:
    """What the walk back from the weights has found so far."""

    op: Op
    scale: float = 1.0
    renormalize: bool = False
    eps: float = 0.0
    eps_is_floor: bool = False
    expert_scale: str | None = None
    score: str | None = None
    score_dtype: str = ""


def dtype_name(op: Op) -> str:
    return str(op.dtype).removeprefix("torch.")


def top_k_of(chosen: Op) -> Op:
    if chosen.name == "getitem" and chosen.attrs["key"] == "1":
        picked = chosen.inputs[0]
        is_top_k = isinstance(picked, Op) and picked.name == "topk" and picked.attrs["dim"] == -1
        if is_top_k and picked.attrs["largest"]:
            return picked
    raise unknown(chosen, "the experts are not chosen by a top-k")


def walk_weights(weights: Op, chosen: Op) -> Weights:
    """From the weights back to the values that were chosen."""
    found = Weights(weights)
    while True:
        op = found.op = uncast(found.op)
        if op.name in ("mul", "div") and (scaled := _by_number(op)) is not None:
            if found.score is not None:
                raise unknown(op, "the logits are scaled between top-k and score")
            if found.renormalize:
                raise unknown(op, "the weights are scaled before they are renormalized")
            found.op, factor = scaled
            found.scale *= factor
        elif op.name == "mul" and (spread := _per_expert(op, chosen)) is not None:
            if found.expert_scale is not None or found.renormalize:
                raise unknown(op, "a factor per expert before the weights are renormalized")
            found.op, found.expert_scale = spread
        elif op.name == "div" and not found.renormalize and found.score is None:
            found.op, found.eps, found.eps_is_floor = _renormalized(op)
            found.renormalize = True
        elif op.name in ("softmax", "sigmoid") and found.score is None and _is_chosen(op, chosen):
            if op.attrs.get("dim", -1) != -1:
                raise unknown(op, "the score runs along another dimension")
            found.score, found.score_dtype = op.name, dtype_name(op)
            found.op = op.inputs[0]
        elif op.name in ("gather", "getitem"):
            return found
        else:
            raise unknown(op, f"`{op.label}` stands between the chosen scores and the weights")


def _is_chosen(op: Op, chosen: Op) -> bool:
    """Is the operand of this score the K chosen values, not all E of them?"""
    inner = uncast(op.inputs[0])
    return inner.shape == chosen.shape and inner.name in ("gather", "getitem")


def _by_number(op: Op) -> tuple[Op, float] | None:
    left, right = op.inputs
    if isinstance(left, Op) and is_float(right):
        return left, float(right) if op.name == "mul" else 1.0 / float(right)
    if op.name == "mul" and isinstance(right, Op) and is_float(left):
        return right, float(left)
    return None


def _per_expert(op: Op, chosen: Op) -> tuple[Op, str] | None:
    """(x, path) of x * parameter[chosen]."""
    for value, other in (op.inputs, op.inputs[::-1]):
        spread = uncast(other) if isinstance(other, Op) else None
        if spread is None or spread.name != "index":
            continue
        table, index = (uncast(i) for i in spread.inputs)
        if table.name == "param" and len(table.shape) == 1 and index is chosen:
            return value, str(table.target)
    return None


def _renormalized(op: Op) -> tuple[Op, float, bool]:
    """(w, eps, floor) of w / (sum(w) + eps), or of w / max(sum(w), eps)."""
    value, below = op.inputs
    if not isinstance(value, Op) or not isinstance(below, Op):
        raise unknown(op, "the weights are divided by what is not their sum")
    below, eps, floor = uncast(below), 0.0, False
    if below.name == "add" and is_float(below.inputs[1]):
        eps, below = float(below.inputs[1]), uncast(below.inputs[0])
    elif below.name == "clamp" and is_float(below.inputs[1]) and below.inputs[2] is None:
        eps, floor, below = float(below.inputs[1]), True, uncast(below.inputs[0])
    is_sum = below.name == "sum" and below.attrs["dim"] == -1 and below.attrs["keepdim"]
    # Scores are not negative, so their 1-norm is their sum.
    is_norm = below.name == "unknown:norm" and below.inputs[1:4] == (1.0, -1, True)
    if not (is_sum or is_norm) or not same(below.inputs[0], value):
        raise unknown(op, "the weights are divided by what is not their sum")
    return value, eps, floor


def scores_of(op: Op, picked: Op, chosen: Op) -> Op:
    """The [T, E] tensor the weights are taken from."""
    if op.name == "gather" and op.attrs["dim"] == -1:
        value, index = op.inputs
        if uncast(index) is chosen:
            return source_of(value)
    if op.name == "getitem" and op.inputs[0] is picked and op.attrs["key"] == "0":
        return _unmasked(source_of(picked.inputs[0]))[0]
    raise unknown(op, "the weights are not the scores of the chosen experts")


def _unmasked(op: Op) -> tuple[Op, Op | None, float]:
    """(x, mask, fill) of x where mask, else fill; the mask is of what stays."""
    op = source_of(op)
    if op.name == "masked_fill" and is_float(op.inputs[2]):
        value, mask, fill = op.inputs
        mask = uncast(mask)
        if mask.name != "invert":
            raise unknown(mask, "the mask of the choice is not the inverse of kept groups")
        return source_of(value), mask.inputs[0], float(fill)
    if op.name == "mul" and all(isinstance(i, Op) for i in op.inputs):
        value, mask = op.inputs
        if unbool(mask).name in ("expand", "scatter"):
            return source_of(value), mask, 0.0
    return op, None, 0.0


def choice(picked: Op, scores: Op) -> tuple[str | None, Groups | None]:
    """(path of the bias, groups) of what the top-k looks at, beside the scores themselves."""
    looked, mask, fill = _unmasked(picked.inputs[0])
    groups = read_groups(mask, looked, fill) if mask is not None else None
    if same(looked, scores):
        return None, groups
    looked = uncast(looked)
    if looked.name == "add":
        for value, other in (looked.inputs, looked.inputs[::-1]):
            bias = uncast(other) if isinstance(other, Op) else None
            if bias is None or bias.name != "param" or not same(value, scores):
                continue
            if _is_vector(bias, scores.shape[-1]):
                return str(bias.target), groups
    raise unknown(looked, "the experts are chosen by other numbers than their scores")


def _is_vector(op: Op, size: int) -> bool:
    return op.shape[-1:] == (size,) and all(n == 1 for n in op.shape[:-1])


def score_of(op: Op) -> tuple[str, str, Op]:
    """(score, dtype, logits) of the scores of all experts."""
    op = uncast(op)
    if op.name in ("softmax", "sigmoid"):
        if op.attrs.get("dim", -1) != -1:
            raise unknown(op, "the score runs along another dimension")
        return op.name, dtype_name(op), op.inputs[0]
    if op.name == "sqrt":
        inner = uncast(op.inputs[0])
        if inner.name == "softplus":
            return "sqrt_softplus", dtype_name(op), inner.inputs[0]
    raise unknown(op, f"`{op.label}` makes the scores")


def soft_cap_of(op: Op) -> tuple[Op, float | None]:
    """(x, c) if op is c * tanh(x / c)."""
    outer = _by_number(op) if op.name in ("mul", "div") else None
    if outer is None:
        return op, None
    inner = uncast(outer[0])
    divided = uncast(inner.inputs[0]) if inner.name == "tanh" else None
    before = _by_number(divided) if divided is not None and divided.name in ("mul", "div") else None
    if before is None or abs(before[1] * outer[1] - 1.0) > 1e-6:
        raise unknown(op, "the logits are scaled before their score")
    return uncast(before[0]), outer[1]


def linear_under(op: Op) -> tuple[str, str, str | None, Op]:
    """(weight, layout, bias, input) of the linear map that makes the logits."""
    if op.name == "module" and op.trace is not None:
        facts = linear_of(op.trace)
        if facts is not None:
            bias = f"{op.target}.{facts.bias}" if facts.bias else None
            return f"{op.target}.{facts.weight}", facts.layout, bias, op.inputs[0]
    if op.name == "linear":
        value, weight, bias = op.inputs
        weight, bias = uncast(weight), uncast(bias) if bias is not None else None
        if weight.name == "param" and (bias is None or bias.name == "param"):
            return str(weight.target), op.attrs["layout"], bias.target if bias else None, value
    raise unknown(op, f"`{op.label}` makes the logits, not a linear map")
