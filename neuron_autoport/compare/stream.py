"""The residual stream: from the logits back to the embedding, what is added to it and how.

Every sum is taken apart into the stream, which the other terms are computed from, and the branches.
Several branches of one sum are parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neuron_autoport.compare.flat import Flat, bare, between, down_to_linears, linear, reaches
from neuron_autoport.trace.attention_ops import attention_operands
from neuron_autoport.trace.canonical import ACTIVATIONS
from neuron_autoport.trace.ops import Op

Kind = Literal["attention", "mlp", "moe", "other"]
_INLINE_NORMS = ("rsqrt", "rms_norm", "layer_norm")


@dataclass(frozen=True, eq=False)
class Branch:
    """One term of a residual sum.

    layer: number of the layer. ops: from the stream to the term, in order. core: the term without
    norm and factor. before, after, stream: the norms of its input, of itself, and of the sum.
    inline: a norm that no rule knows is written out in it. scale: factor on the term, and on the
    stream. parallel: how many branches the sum has.
    """

    layer: int
    kind: Kind
    ops: tuple[Op, ...]
    base: Op
    core: Op
    before: tuple[Op, ...]
    after: tuple[Op, ...]
    stream: tuple[Op, ...]
    inline: bool
    scale: float
    stream_scale: float
    parallel: int


@dataclass(frozen=True, eq=False)
class Stream:
    """All branches in order. start: what the stream begins with. final: norms in front of the head.

    head: the linear map that makes the logits. lost: why it could not be followed to an embedding.
    """

    branches: tuple[Branch, ...]
    start: Op | None
    final: tuple[Op, ...]
    head: Op | None
    lost: str | None


@dataclass(eq=False)
class _Sum:
    base: Op
    terms: list[Op]
    norms: list[Op]
    stream_scale: float


def read_stream(flat: Flat) -> Stream:
    """Follow the residual stream of a causal language model."""
    head = next((op for op in down_to_linears(flat.outputs[:1], -1) if linear(op)), None)
    if head is None:
        return Stream((), None, (), None, "no linear map makes the logits")
    op, norms, sums = _past_parts(head.inputs[0]), list[Op](), list[_Sum]()
    while (scaled := flat.scaled(op)) is not None:  # `trace/head.py` reads this factor
        op = _past_parts(scaled[0])
    while True:
        if flat.norm(op) is not None:
            norms.append(op)
            op = _past_parts(op.inputs[0])
        elif op.name == "add" and (found := _apart(flat, op)) is not None:
            sums.append(_Sum(found[0], found[1], norms, found[2]))
            op, norms = _past_parts(found[0]), []
        else:
            break
    lost = None if sums else f"no residual sum was found at {op.label}"
    # Between ids and the first sum there is one map to the model's width at most.
    if sum(linear(o) is not None for o in between(op, -1)) > 1:
        lost = f"the residual stream could not be followed beyond {op.label}"
    on_stream = 2 * sum(bool(s.norms) for s in sums[1:]) > len(sums)
    final = tuple(sums[0].norms) if sums and not on_stream else ()
    if not on_stream and sums:
        sums[0].norms = []
    start = norms[0] if norms else op
    return Stream(_branches(flat, sums[::-1]), start, final, head, lost)


def _past_parts(op: Op) -> Op:
    """Past changes of shape, and past the choice of some tokens."""
    while op.name in ("view", "cast", "getitem", "slice"):
        op = op.inputs[0]
    return op


def _apart(flat: Flat, op: Op) -> tuple[Op, list[Op], float] | None:
    """(the stream, the other terms, factor on the stream) of a sum; None if it is no residual sum."""
    terms = [bare(v) for v in op.inputs if isinstance(v, Op)]
    while True:
        for term in terms:
            others = [t for t in terms if t is not term]
            # The branches may be computed from the term as it is, or from it before a factor.
            for value, scale in ((term, 1.0), *_unscaled(flat, term)):
                if others and all(t.index > value.index and reaches(t, value) for t in others):
                    return value, [p for t in others for p in _parallel(t, value)], scale
        sums = [t for t in terms if t.name == "add" and all(isinstance(v, Op) for v in t.inputs)]
        if not sums:
            return None
        last = max(sums, key=lambda t: t.index)
        terms = [t for t in terms if t is not last] + [bare(v) for v in last.inputs]


def _unscaled(flat: Flat, term: Op) -> list[tuple[Op, float]]:
    scaled = flat.scaled(term)
    return [] if scaled is None else [(bare(scaled[0]), scaled[1])]


def _parallel(term: Op, base: Op) -> list[Op]:
    """The terms of a term that is itself a sum of attention and something else."""
    if term.name != "add" or not all(isinstance(v, Op) for v in term.inputs):
        return [term]
    one, other = (bare(v) for v in term.inputs)
    ways = [any(map(attention_operands, between(v, base.index))) for v in (one, other)]
    return [one, other] if ways.count(True) == 1 and one.name != "param" else [term]


def _branches(flat: Flat, sums: list[_Sum]) -> tuple[Branch, ...]:
    """Numbered by layer: each mixer of tokens begins one."""
    made: list[Branch] = []
    layer, mixed = 0, False
    for found in sums:
        terms = sorted(found.terms, key=lambda t: t.index)
        kinds = [_kind(flat, between(t, found.base.index)) for t in terms]
        if made and (mixed and any(k in ("attention", "other") for k in kinds)):
            layer, mixed = layer + 1, False
        mixed = mixed or any(k in ("attention", "other") for k in kinds)
        made += [_branch(flat, found, t, k, layer) for t, k in zip(terms, kinds, strict=True)]
    return tuple(made)


def _kind(flat: Flat, ops: list[Op]) -> Kind:
    if any(attention_operands(op) is not None for op in ops):
        return "attention"
    if any(flat.is_experts(op) for op in ops):
        return "moe"
    plain = (
        "module",
        "mul",
        "param",
        "slice",
        "pieces",
        "add",
        "view",
        "cast",
        "getitem",
        *ACTIVATIONS,
    )
    whole = all(op.name in plain or op.name in ("clamp", "clamp_min", "div") for op in ops)
    return "mlp" if whole and any(op.name in ACTIVATIONS for op in ops) else "other"


def _branch(flat: Flat, found: _Sum, term: Op, kind: Kind, layer: int) -> Branch:
    op, scale, after = bare(term), 1.0, list[Op]()
    while True:
        if (scaled := flat.scaled(op)) is not None:
            op, scale = bare(scaled[0]), scale * scaled[1]
        elif flat.norm(op) is not None and bare(op.inputs[0]) is not found.base:
            after.append(op)
            op = bare(op.inputs[0])
        else:
            break
    ops = between(term, found.base.index)
    before = tuple(o for o in ops if flat.norm(o) and bare(o.inputs[0]) is found.base)
    inline = any(o.name in _INLINE_NORMS and not _after_linear(o, found.base) for o in ops)
    return Branch(
        layer, kind, tuple(ops), found.base, op, before, tuple(after), tuple(found.norms),
        inline, scale, found.stream_scale, len(found.terms),
    )  # fmt: skip


def _after_linear(op: Op, base: Op) -> bool:
    return any(linear(o) is not None for o in between(op, base.index))
