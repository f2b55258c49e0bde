"""What one attention does, read from the operations around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from neuron_autoport.compare.flat import Flat, bare, between, down_to_linears, linear, reaches
from neuron_autoport.compare.norms import norm_text
from neuron_autoport.compare.stream import Branch
from neuron_autoport.port import BATCH
from neuron_autoport.trace.attention_ops import attention_operands
from neuron_autoport.trace.ops import Op

_TURNS = {"rotate_half": "half-split pairs", "rotate_pairs": "neighbouring pairs"}
_NAMES = ("q", "k", "v")


@dataclass(frozen=True)
class AttentionFacts:
    """One attention. heads, kv_heads, head_dim, value_dim: of the whole model.

    projections: how query, key and value are made. biased: which of q, k, v and output have a bias.
    scale: factor on the scores; None if it is not understood. window: of the interface's call; None for all.
    rope: kind of rotary pairs, or `none`; rope_width: of a head's numbers, how many are rotated, None if
    not known. written_out: not a call of the interface, so scale, window and soft-cap are not known.
    frequencies: of the rotation. qk_norm, output: what stands there besides, or `none`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    projections: str
    biased: tuple[str, ...]
    scale: float | None
    window: int | None
    softcap: float | None
    sinks: bool
    scores_bias: bool
    qk_norm: str
    rope: str
    rope_width: int | None
    frequencies: str
    output: str
    written_out: bool


def read_attention(flat: Flat, branch: Branch) -> AttentionFacts:
    """The attention of a branch that has one."""
    op = next(o for o in reversed(branch.ops) if attention_operands(o) is not None)
    operands = attention_operands(op)
    assert operands is not None
    query, key, value = operands
    low = branch.base.index
    paths = [list(down_to_linears([v], low)) for v in operands]
    linears = [[o for o in path if linear(o) is not None] for path in paths]
    tables = _tables(paths[0], branch.base)
    rope, width = _rope(paths[0], tables)
    made = op.name in ("attention", "sdpa")
    heads, kv_heads = _heads(query), _heads(key)
    outs = [o for o in down_to_linears([branch.core], op.index) if linear(o) is not None]
    biased = [n for n, found in zip(_NAMES, linears, strict=True) if _has_bias(found)]
    biased += ["output"] if _has_bias(outs) else []
    return AttentionFacts(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=int(query.shape[-1]),
        value_dim=int(value.shape[-1]),
        projections=_projections(linears, low),
        biased=tuple(biased),
        scale=_scale(flat, op, branch.base, paths[:2]) if made else None,
        window=op.attrs.get("sliding_window"),
        softcap=op.attrs.get("softcap"),
        sinks=op.attrs.get("s_aux") is not None,
        scores_bias=not made and any(o.name == "baddbmm" for o in between(op, low)),
        qk_norm=_qk_norm(flat, paths, query),
        rope=rope,
        rope_width=width,
        frequencies=frequencies(flat, tables) if rope != "none" else "none",
        output=_around_output(flat, branch, op, outs),
        written_out=not made,
    )


def _has_bias(linears: list[Op]) -> bool:
    return any(facts is not None and facts.bias for facts in map(linear, linears))


def _heads(value: Op) -> int:
    """Heads of [B, N, S, D], or of [B * N, S, D] where attention is written out."""
    return int(value.shape[1]) if len(value.shape) == 4 else int(value.shape[0]) // BATCH


def _scale(flat: Flat, op: Op, base: Op, paths: list[list[Op]]) -> float:
    """The factor on the scores: the interface's, times those that query and key were given before."""
    given = op.attrs.get("scaling", op.attrs.get("scale"))
    scale = float(op.inputs[0].shape[-1] ** -0.5) if given is None else float(given)
    for one in (o for path in paths for o in path):
        scaled = flat.scaled(one)
        if scaled is not None and reaches(scaled[0], base):
            scale *= scaled[1]
    return scale


def _projections(linears: list[list[Op]], low: int) -> str:
    """`three linear maps`, `one packed linear map`, or how many and how deep."""
    firsts = list(dict.fromkeys(op for found in linears for op in found))
    if not all(linears):
        return "not all of them linear maps"
    deeper = [
        o for op in firsts for o in down_to_linears(list(op.inputs), low) if linear(o) is not None
    ]
    if deeper:
        return f"low rank, {len(firsts)} linear maps behind {len(set(deeper))} others"
    words = {1: "one packed linear map", 2: "two linear maps", 3: "three linear maps"}
    return words.get(len(firsts), f"{len(firsts)} linear maps")


def _rope(path: list[Op], tables: list[Op]) -> tuple[str, int | None]:
    """(kind of pairs, how many of a head's numbers are rotated) on the way to a query."""
    for op in path:
        if op.name in _TURNS:
            return _TURNS[op.name], int(op.inputs[0].shape[-1])
    return ("another form", None) if tables else ("none", 0)


def _tables(path: list[Op], base: Op) -> list[Op]:
    """The cosines, sines, complex rotations, or rows chosen by position, that a query is multiplied by."""
    factors = [
        v
        for op in path
        if op.name in ("mul", "unknown:mul") or "complex" in op.name
        for v in op.operands()
        if not reaches(v, base)
    ]
    behind = dict.fromkeys(o for v in factors for o in between(v, -1))
    chosen = any(o.name == "unknown:arange" for o in behind)
    turned = [o for o in behind if o.name in ("cos", "sin") or "polar" in o.name]
    return turned or (factors if chosen else [])


def frequencies(flat: Flat, tables: list[Op]) -> str:
    """The frequencies of a rotation, from the values that the model's own code gives them."""
    behind = dict.fromkeys(o for table in tables for o in between(table, -1))
    vectors = [str(o.target) for o in behind if o.name == "param" and len(o.shape) == 1]
    values = [flat.buffer(path) for path in dict.fromkeys(vectors)]
    texts = ["not known" if v is None else describe(v) for v in values]
    return "; ".join(dict.fromkeys(texts)) or "not known"


def describe(inverse: torch.Tensor) -> str:
    """`base 10000`, `base 10000, divided by 8`, or the range of frequencies that have no one base.

    inverse: [D / 2], inverse[i] = base ** (-i / (D / 2)) / divisor.
    """
    freqs = inverse.double()
    count = len(freqs)
    if count < 2:
        return f"one frequency, {float(freqs[0]):g}"
    divisor = 1.0 / float(freqs[0])
    base = float(freqs[0] / freqs[1]) ** count
    made = base ** (-torch.arange(count, dtype=torch.float64) / count) / divisor
    if torch.allclose(made, freqs, rtol=1e-4, atol=0.0):
        return f"base {_round(base)}" + (f", divided by {divisor:g}" if divisor > 1.000001 else "")
    return f"scaled, from {float(freqs.max()):.3g} to {float(freqs.min()):.3g}"


def _round(base: float) -> int:
    """To four digits: the base is worked out from float32 values."""
    digits = max(0, len(str(int(base))) - 4)
    return int(round(base / 10**digits) * 10**digits)


def _qk_norm(flat: Flat, paths: list[list[Op]], query: Op) -> str:
    """Norms of query and key between the linear map and the attention."""
    said = []
    for name, path in zip(_NAMES, paths, strict=True):
        norms = [o for o in path if flat.norm(o)]
        turn = next((o for o in path if o.name in _TURNS), None)
        for op in norms:
            width = int(op.inputs[0].shape[-1])
            size = "each head" if width == query.shape[-1] else f"all {width} numbers"
            place = ""
            if turn is not None:
                place = f", {'before' if reaches(turn, op) else 'after'} the rotation"
            said.append((name, f"{norm_text(flat, op)}, over {size}{place}"))
    texts = list(dict.fromkeys(text for _, text in said))
    if len(texts) == 1:
        return f"{', '.join(n for n, _ in said)}: {texts[0]}"
    return "; ".join(f"{n}: {text}" for n, text in said) or "none"


def _around_output(flat: Flat, branch: Branch, op: Op, outs: list[Op]) -> str:
    """What stands between an attention and its output map, or `none`."""
    if not outs:
        return "none"
    between_them = between(outs[-1].inputs[0], op.index)
    found = []
    for one in between_them:
        factors = [bare(v) for v in one.inputs if isinstance(v, Op)] if one.name == "mul" else []
        if len(factors) == 2 and any(f.name in ("sigmoid", "silu") for f in factors):
            gate = next(f.name for f in factors if f.name in ("sigmoid", "silu"))
            found.append(f"a {gate} gate")
        elif flat.norm(one):
            found.append(norm_text(flat, one))
    return ", ".join(dict.fromkeys(found)) or "none"


def reads_positions(op: Any) -> bool:
    """Is a value made of positions alone: of no token and no weight of a linear map?"""
    found = between(op, -1)
    return not any(linear(o) is not None or o.name == "input" for o in found)
