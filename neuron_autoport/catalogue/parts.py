"""The parts of a model that kernels are for, with their real sizes, read from a port's graphs and sites.

Attention, embeddings and layer norms are operations of the graphs. Projections, MLPs and RMS norms are
what a rule found. What no rule found is not here: names are no evidence.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neuron_autoport.catalogue.load import data
from neuron_autoport.fused import FusedWeight
from neuron_autoport.kernels.calls import arguments as call_arguments
from neuron_autoport.kernels.limits import figure
from neuron_autoport.port import Port
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site
from neuron_autoport.trace.ops import Op

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One kind of part in one class.

    Attributes:
        kind: a key of `PARTS`.
        class_name: of the module it is in.
        sizes: what is known of it, on one rank.
        features: what it asks for: keys of `FEATURES`.
        count: how often the model has it.
    """

    kind: str
    class_name: str
    sizes: Sizes
    features: tuple[str, ...]
    count: int = 1


def parts_of(port: Port, tp: int = 1) -> tuple[Part, ...]:
    """All parts of a model, equal ones counted together."""
    counts: Counter[int] = Counter()
    found: dict[Any, Part] = {}
    order: dict[Any, int] = {}
    runs = Counter(id(plan) for plan in port.where.values())
    for plan in {id(p): p for p in port.where.values()}.values():
        for kind, sizes, features in _of_class(plan, tp, port.tokens):
            name = plan.trace.module_class.__name__
            key = (kind, name, tuple(sorted(sizes.items())), features)
            number = order.setdefault(key, len(order))
            found[key] = Part(kind, name, sizes, features)
            counts[number] += runs[id(plan)]
    return tuple(
        Part(p.kind, p.class_name, p.sizes, p.features, counts[order[key]])
        for key, p in found.items()
    )


Found = Iterator[tuple[str, Sizes, tuple[str, ...]]]


def _of_class(plan: ClassPlan, tp: int, tokens: int) -> Found:
    experts = _experts([op for op in plan.graph.ops if op.name == "grouped_mm"], tp, tokens)
    if experts is not None:
        yield "moe", experts, ()
    around = _around_attention(plan, tp)
    for op in plan.graph.ops:
        if op.name == "attention":
            yield "attention", _attention(op, tp) | around, _attention_features(op)
        elif op.name == "embedding" and len(op.operands()) > 1:
            rows, width = op.operands()[1].shape
            yield "embedding", {"vocab": rows, "width": width}, ()
    for site in plan.sites:
        yield from _of_site(site, tp)


def _around_attention(plan: ClassPlan, tp: int) -> Sizes:
    """Sizes of the class's query/key/value projection, for kernels that do the whole block."""
    made = [w for s in plan.sites if s.rule.call == "NF.qkv_proj" for w in s.weights]
    if len(made) != 1:
        return {}
    return {"hidden": made[0].in_features, "qkv_width": -(-made[0].out_features // tp)}


def _experts(products: list[Op], tp: int, tokens: int) -> Sizes | None:
    """Sizes of experts that are two grouped products, one into the inner width and one out of it."""
    if len(products) != 2:
        return None
    (rows, up), (_, down) = (op.operands()[:2] for op in products)
    if len(up.shape) != 3 or len(down.shape) != 3 or up.shape[1] != down.shape[2]:
        return None
    return {
        "experts": up.shape[0],
        "hidden": up.shape[1],
        "expert_intermediate": -(-down.shape[1] // tp),
        "top_k": rows.shape[0] // tokens,
    }


def _attention(op: Op, tp: int) -> Sizes:
    query, key, value = op.inputs[:3]
    sizes: Sizes = {
        "head_dim": query.shape[-1],
        "v_head_dim": value.shape[-1],
        "heads": -(-query.shape[1] // tp),
        "kv_heads": max(1, key.shape[1] // tp),
        "dtype": str(query.dtype).removeprefix("torch."),
    }
    if op.attrs.get("sliding_window"):
        sizes["window"] = op.attrs["sliding_window"]
    return sizes


def _attention_features(op: Op) -> tuple[str, ...]:
    query, key = op.inputs[:2]
    asked = {
        "gqa": key.shape[1] != query.shape[1],
        "window": bool(op.attrs.get("sliding_window")),
        "softcap": bool(op.attrs.get("softcap")),
        "sink": op.attrs.get("s_aux") is not None,
    }
    return tuple(name for name, wanted in asked.items() if wanted)


def _of_site(site: Site, tp: int) -> Found:
    """A part that a rule found, by the function its replacement calls."""
    call = site.rule.call
    weights = site.weights
    bias = ("bias",) if any(w.has_bias for w in weights) else ()
    if call == "NF.qkv_proj":
        (qkv,) = weights
        sizes = {"hidden": qkv.in_features, "qkv_width": -(-qkv.out_features // tp)}
        yield "qkv", sizes | ({"head_dim": qkv.head_dim} if qkv.head_dim else {}), bias
    elif call == "NF.o_proj":
        (out,) = weights
        yield "o_proj", {"hidden": out.out_features, **_heads(site, tp)}, bias
    elif call == "NF.mlp":
        yield "mlp", _mlp(weights, tp), (*_activation(site), *bias)
    elif call.startswith("NK."):
        yield from _of_own(site, call.removeprefix("NK."))


def _heads(site: Site, tp: int) -> Sizes:
    """Heads and their width, from the attention whose result the site projects."""
    above = [v for v in site.match.values.values() if isinstance(v, Op)]
    seen: set[Op] = set()
    while above:
        op = above.pop()
        if op.name == "attention":
            query, value = op.inputs[0], op.inputs[2]
            return {"heads": -(-query.shape[1] // tp), "head_dim": value.shape[-1]}
        if op not in seen and op.name not in ("input", "param", "module"):
            seen.add(op)
            above += op.operands()
    return {}


def _mlp(weights: tuple[FusedWeight, ...], tp: int) -> Sizes:
    (down,) = (w for w in weights if w.shard == "row")
    return {"hidden": down.out_features, "intermediate": -(-down.in_features // tp)}


def _activation(site: Site) -> tuple[str, ...]:
    act = site.found.get("act", "")
    known = act if act in ("silu", "gelu", "gelu_tanh") else "other_act"
    gated = any(isinstance(n, ast.keyword) and n.arg == "skip_gate" for n in _nodes(site))
    return (known, "ungated") if gated else (known,)


def _nodes(site: Site) -> Iterator[ast.AST]:
    yield from ast.walk(site.rule.replace.value)


def _of_own(site: Site, name: str) -> Found:
    """A part that one of our own functions stands for: sizes by the figures of its call."""
    known = {e["name"]: e for e in data("own.yaml")["entries"]}.get(name)
    if known is None:
        return
    arguments = call_arguments(site, name)
    sizes = {
        size: value
        for text, size in known["sizes"].items()
        if isinstance(value := figure(text, arguments), int | str)
    }
    for kind in known["part"]:
        if kind != "attention":  # read from the graph, whether a rule found it or not
            yield kind, sizes, _norm_features(name, site)


def _norm_features(name: str, site: Site) -> tuple[str, ...]:
    if not name.endswith("norm"):
        return ()
    form = "layer" if name == "layer_norm" else "rms"
    keywords = {k.arg: k.value for n in _nodes(site) if isinstance(n, ast.Call) for k in n.keywords}
    more = []
    if "offset" in keywords:
        more.append("one_plus_weight")
    elif "weight_in_fp32" in keywords:
        more.append("fp32_weight")
    return (form, "plain", *more)
