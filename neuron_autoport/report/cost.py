"""FLOPs and bytes of one canonical operation, for one token of one sequence in a decode step.

The model is traced with BATCH sequences of TOKENS tokens. A value computed from parameters alone is
made once per step; any other is spread over the traced tokens. Attention is not taken at the traced
length but computed for a context of `context` positions (a window shortens it):

    FLOPs = 2 N C (D + Dv) + 5 N C        the two products, and softmax at 5 per score
    bytes = Nkv C (D + Dv) itemsize       the cache, plus query and result

for N query heads, Nkv key/value heads of width D and Dv, and C positions. Products count 2 FLOPs
per multiply-add, a softmax or a norm 5 per element, anything else 1 per element. What only moves or
makes values counts bytes and no FLOPs; a change of layout is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from neuron_autoport.port import BATCH, TOKENS
from neuron_autoport.trace.ops import Op, OpGraph

REFERENCE_CONTEXT = 1024
SOFTMAX_FLOPS = 5
_TRACED_TOKENS = BATCH * TOKENS

PRODUCTS = frozenset({"linear", "matmul", "baddbmm", "conv", "einsum", "grouped_mm"})
NORMS = frozenset({"layer_norm", "rms_norm", "softmax"})
LAYOUT = frozenset(
    {"view", "permute", "slice", "getitem", "pieces"}
    | {"expand", "expand_as", "broadcast_to", "narrow", "unbind"}
)
_STRUCTURE = frozenset({"input", "param", "module"})
_NO_FLOPS = frozenset(
    {"cat", "concat", "concatenate", "stack", "repeat", "repeat_interleave", "pad", "roll"}
    | {"where", "gather", "index_select", "embedding", "setitem", "copy", "tril", "triu"}
    | {"repeat_pairs", "pairs_as_complex", "complex_as_pairs", "as_real"}
    | {"cast", "int", "long", "bool", "arange", "full", "full_like", "empty", "empty_like"}
    | {"zeros", "zeros_like", "ones", "ones_like"}
)


@dataclass(frozen=True)
class Cost:
    """Per token: floating-point operations, and bytes read and written."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: int) -> Cost:
        return Cost(self.flops * count, self.bytes * count)


def base_name(op: Op) -> str:
    """The operation's name without underscores, also of one outside the canonical vocabulary."""
    return op.name.removeprefix("unknown:").strip("_")


def kind_of(op: Op) -> str:
    """What sort of work an op is: attention, embedding, norm, elementwise, layout, a product."""
    name = base_name(op)
    if name.startswith("conv") and op.name.startswith("unknown:"):
        return "conv"
    if op.name in _STRUCTURE:
        return "structure"
    if name in LAYOUT:
        return "layout"
    if name in PRODUCTS or op.name in ("attention", "embedding", "softmax"):
        return name
    return "norm" if op.name in NORMS else "elementwise"


def graph_costs(
    graph: OpGraph,
    context: int = REFERENCE_CONTEXT,
    tokens: int = _TRACED_TOKENS,
    batch: int = 1,
) -> dict[Op, Cost]:
    """The cost of every op of a class, one call of it; calls of child modules cost nothing here.

    Args:
        tokens: it was traced with, over all sequences. batch: sequences of the decode step.
    """
    static = static_ops(graph)
    return {op: _cost(op, static, context, tokens, batch) for op in graph.ops}


def static_ops(graph: OpGraph) -> set[Op]:
    """Values computed from parameters alone: once per step, however many tokens it has."""
    static: set[Op] = set()
    for op in graph.ops:
        operands = op.operands()
        if op.name == "param" or (operands and all(o in static for o in operands)):
            static.add(op)
    return static


def _cost(op: Op, static: set[Op], context: int, traced: int, batch: int) -> Cost:
    kind = kind_of(op)
    tokens = traced / batch
    if kind in ("structure", "layout"):
        return Cost()
    if kind == "attention":
        return _attention(op, context, traced).times(batch)
    share = 1.0 if op in static else 1.0 / tokens
    moved = size_of(op) * share
    if kind == "embedding":
        return Cost(0.0, 2 * moved)  # one row of the table is read, not the table
    if kind == "grouped_mm":
        return Cost(_product_flops(op, kind) * share, moved + _grouped_read(op, tokens))
    moved += sum(size_of(o) * (1.0 if o in static else 1.0 / tokens) for o in op.operands())
    return Cost(_flops(op, kind) * share, moved)


def _flops(op: Op, kind: str) -> float:
    if kind in PRODUCTS:
        return _product_flops(op, kind)
    if base_name(op) in _NO_FLOPS:
        return 0.0
    elements = max([math.prod(op.shape), *(math.prod(o.shape) for o in op.operands())])
    return float(elements * (SOFTMAX_FLOPS if op.name in NORMS else 1))


def _product_flops(op: Op, kind: str) -> float:
    """2 FLOPs per multiply-add; a bias adds one per result."""
    out = math.prod(op.shape)
    operands = op.operands()
    if kind == "einsum" and isinstance(op.inputs[0], str):
        return 2.0 * math.prod(_einsum_sizes(op.inputs[0], operands).values())
    if kind == "conv":
        return 2.0 * out * math.prod(operands[1].shape[1:])
    left = op.inputs[1] if kind == "baddbmm" else operands[0]
    has_bias = kind == "baddbmm" or (kind == "linear" and op.inputs[2] is not None)
    return 2.0 * out * left.shape[-1] + (out if has_bias else 0)


def _einsum_sizes(equation: str, operands: list[Op]) -> dict[str, int]:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=False):
        sizes.update(zip(reversed(term), reversed(operand.shape), strict=False))
    return sizes


def _grouped_read(op: Op, tokens: float) -> float:
    """Rows of one token, and the weights of as many experts as it goes through."""
    rows, weights = op.operands()[:2]
    experts = weights.shape[0]
    active = min(experts, rows.shape[0] / tokens)
    return size_of(rows) / tokens + size_of(weights) / experts * active


def _attention(op: Op, context: int, tokens: int) -> Cost:
    query, key, value = op.inputs[:3]
    positions = min(context, op.attrs.get("sliding_window") or context)
    heads, kv_heads = query.shape[1], key.shape[1]
    width = query.shape[-1] + value.shape[-1]
    flops = 2 * heads * positions * width + SOFTMAX_FLOPS * heads * positions
    cache = kv_heads * positions * width * _itemsize(key)
    return Cost(float(flops), cache + (size_of(query) + size_of(op)) / tokens)


def size_of(op: Op) -> float:
    """Bytes of the value as it was traced."""
    return float(math.prod(op.shape) * _itemsize(op)) if op.dtype is not None else 0.0


def _itemsize(op: Op) -> int:
    dtype: Any = op.dtype
    return int(dtype.itemsize) if isinstance(dtype, torch.dtype) else 0
