"""All that is read from one model's graphs, as values by name; values that differ by layer are folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from neuron_autoport.compare.attention import AttentionFacts, read_attention
from neuron_autoport.compare.blocks import mlp_values, moe_values
from neuron_autoport.compare.ends import embedding_values, head_values
from neuron_autoport.compare.flat import Flat
from neuron_autoport.compare.norms import norm_text
from neuron_autoport.compare.points import TRAITS
from neuron_autoport.compare.stream import Branch, Stream, read_stream
from neuron_autoport.port import Port
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.moe import read_blocks

_UNKNOWN = "not known"
_SHOWN = 4


@dataclass(frozen=True, eq=False)
class Reading:
    """values: text by name, see `points.TRAITS`. attention: facts by layer. layers: how many.

    by_layer: for every name that is read per layer, its value in each.
    """

    values: dict[str, str]
    attention: dict[int, AttentionFacts]
    layers: int
    by_layer: dict[str, dict[int, str]]


def read(port: Port, rules: tuple[Rule, ...]) -> Reading:
    """Read a planned model. What cannot be read is a value that says so."""
    flat = Flat(port, rules)
    stream = read_stream(flat)
    blocks = read_blocks(port.trace)
    facts = {b.layer: read_attention(flat, b) for b in stream.branches if b.kind == "attention"}
    per_layer: dict[str, dict[int, str]] = {}
    for layer, found in facts.items():
        for key, text in attention_values(found).items():
            per_layer.setdefault(key, {})[layer] = text
    for branch in stream.branches:
        values = _branch_values(flat, branch)
        if branch.kind == "mlp":
            values |= mlp_values(branch)
        elif branch.kind == "moe":
            values |= moe_values(flat, branch, blocks)
        for key, text in values.items():
            known = per_layer.setdefault(key, {})
            before = known.get(branch.layer)
            known[branch.layer] = text if before in (None, text) else f"{before}; {text}"
    count = 1 + max((b.layer for b in stream.branches), default=-1)
    values = {key: fold(found, count) for key, found in per_layer.items()}
    values |= {"layers.count": str(count), "layers.kinds": _kinds(per_layer, count)}
    values |= {"norm.form": _forms(flat, stream), "norm.final": "yes" if stream.final else "no"}
    values |= embedding_values(flat, stream) | head_values(port, stream)
    values["trace"] = _ends(port, stream)
    if stream.lost:  # nothing was read of the layers: that is not the same as none being there
        read_anyway = ("head.", "logits.", "trace", "config.")
        values |= {key: "not read" for key in TRAITS if not key.startswith(read_anyway)}
        return Reading(values, {}, 0, {})
    return Reading(values, facts, count, per_layer)


def attention_values(facts: AttentionFacts) -> dict[str, str]:
    """One attention's facts as text."""
    heads = f"{facts.heads} query, {facts.kv_heads} key/value, {facts.head_dim} wide"
    if facts.value_dim != facts.head_dim:
        heads += f", values {facts.value_dim} wide"
    scale = _UNKNOWN
    if facts.scale is not None:
        near = abs(facts.scale * facts.head_dim**0.5 - 1.0) < 1e-6
        scale = f"{facts.scale:.6g}" + (" (head width ^ -0.5)" if near else "")
    unknown = _UNKNOWN if facts.written_out else ""
    width = _UNKNOWN if facts.rope_width is None else f"{facts.rope_width} of {facts.head_dim}"
    return {
        "attention.heads": heads,
        "attention.projections": facts.projections,
        "attention.bias": "on " + ", ".join(facts.biased) if facts.biased else "none",
        "attention.scale": scale,
        "attention.window": unknown or str(facts.window or "none"),
        "attention.softcap": unknown or (f"{facts.softcap:g}" if facts.softcap else "none"),
        "attention.sinks": "yes" if facts.sinks else "none",
        "attention.qk_norm": facts.qk_norm,
        "attention.output": facts.output,
        "position.rotation": facts.rope,
        "position.width": "none" if facts.rope == "none" else width,
        "position.frequencies": facts.frequencies,
        "position.bias": "added to the scores" if facts.scores_bias else "none",
    }


def _branch_values(flat: Flat, branch: Branch) -> dict[str, str]:
    """Place of norms, factors and order of one branch."""
    role = {"attention": "attention", "mlp": "MLP", "moe": "MLP", "other": "other"}[branch.kind]
    places = ["before"] * bool(branch.before) + ["after"] * bool(branch.after)
    places += ["after the sum"] * bool(branch.stream)
    if branch.inline and not branch.before:
        places.append("one that no rule knows")
    where = f"{role}: {' and '.join(places) or 'none'}"
    factors = [f"{role} × {branch.scale:.6g}"] * (branch.scale != 1.0)
    factors += [f"stream × {branch.stream_scale:.6g}"] * (branch.stream_scale != 1.0)
    shared = "attention and MLP side by side" if branch.parallel > 1 else "one after the other"
    mixer = {"other": "other than attention", "attention": "attention"}.get(branch.kind)
    said = {"norm.place": where, "residual.order": shared}
    said |= {"residual.scale": ", ".join(factors)} if factors else {}
    return said | ({"layers.mixer": mixer} if mixer else {})


def _forms(flat: Flat, stream: Stream) -> str:
    """Every form of norm that stands on the stream or on a branch's way."""
    norms = [n for b in stream.branches for n in (*b.before, *b.after, *b.stream)]
    texts = list(dict.fromkeys(norm_text(flat, n) for n in (*norms, *stream.final)))
    inline = any(b.inline and not b.before for b in stream.branches)
    return "; ".join(texts + ["one that no rule knows"] * inline) or "none"


def _kinds(per_layer: dict[str, dict[int, str]], count: int) -> str:
    """How many kinds of layers there are, and in what they differ."""
    looks = {tuple(found.get(i) for found in per_layer.values()) for i in range(count)}
    if len(looks) <= 1:
        return "all alike"
    varying = [TRAITS[k].label for k, found in per_layer.items() if len(set(found.values())) > 1]
    return f"{len(looks)} kinds, differing in {', '.join(varying)}"


def _ends(port: Port, stream: Stream) -> str:
    ends = [part.end for _, part in port.trace.walk() if part.end is not None]
    said = [f"{len(ends)} modules not traced to their end ({ends[0].code})"] if ends else []
    return "; ".join(said + ([stream.lost] if stream.lost else [])) or "whole"


def fold(found: dict[int, str], count: int) -> str:
    """One text for a value by layer: the value, a period, or ranges of layers.

    found: value by layer; layers that have none (no attention, no experts) do not count.
    """
    numbers = sorted(found)
    values = [found[i] for i in numbers]
    if len(set(values)) <= 1:
        return values[0] if values else "none"
    for period in range(2, count // 2 + 1) if len(values) == count else ():
        if all(values[i] == values[i - period] for i in range(period, count)):
            runs = [(text, len(list(run))) for text, run in groupby(values[:period])]
            return f"by turns: {', '.join(f'{n} × {text}' for text, n in runs)}"
    layers: dict[str, list[int]] = {}
    for i in numbers:
        layers.setdefault(found[i], []).append(i)
    return "; ".join(f"{text} in layers {ranges(where)}" for text, where in layers.items())


def ranges(numbers: Iterable[int]) -> str:
    """`0-4, 6`: ascending numbers as ranges; long lists are cut."""
    runs = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        runs.append(f"{found[0]}-{found[-1]}" if len(found) > 1 else str(found[0]))
    shown = runs if len(runs) <= _SHOWN else [*runs[: _SHOWN - 1], f"… ({len(runs)} ranges)"]
    return ", ".join(shown)
