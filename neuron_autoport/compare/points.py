"""The eight points to go through when a model is ported, and what is read for each.

`TRAITS` says for each value of a reading where it belongs, how it is called, what a difference means for
a port, and who does it. `FIELDS` sorts configuration fields under the points; it is used to show
them in their place and decides nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class PointText:
    """A point. touches: what of a port it is about. roles: of the rules that do it."""

    number: int
    name: str
    touches: str
    roles: tuple[str, ...] = ()


POINTS = (
    PointText(1, "attention", "the whole attention forward", ("qkv_proj", "o_proj")),
    PointText(2, "layers that differ", "branches by layer, and making the weights"),
    PointText(
        3, "position encoding", "rotary embedding, or what is there instead",
        ("rope", "qk_norm_rope"),
    ),
    PointText(
        4, "MLP and activation", "whether NF.mlp fits", ("gated_mlp", "ungated_mlp", "act_and_mul")
    ),
    PointText(
        5, "normalization", "kind of the norm, and where it stands",
        ("rms_norm", "layer_norm", "add_rms_norm"),
    ),
    PointText(6, "configuration layout", "reading the configuration"),
    PointText(7, "embedding and head", "shared weights, cutting the vocabulary"),
    PointText(8, "special features", "what has to be added"),
)  # fmt: skip


@dataclass(frozen=True)
class TraitText:
    """One value of a reading. means: of a difference. host: who does it where B has it; may be empty."""

    point: int
    label: str
    means: str
    host: str = ""


_BY_GRAPH = (
    "on Neuron it is taken from the graph; vLLM's own setting is held against the graph, and a layer that "
    "would differ is refused"
)
_TRACE = "every class is traced in each configuration it has, so each gets a plan of its own"
_AS_WRITTEN = "where no rule applies it stays in the model's own code, which both hosts run"

TRAITS = {
    "attention.heads": TraitText(
        1, "heads", "other head counts or widths: sharding of query, key and value, and kernel limits",
        "heads are shared among ranks, key/value heads repeated where there are more ranks",
    ),
    "attention.projections": TraitText(
        1, "q, k, v from", "query, key and value are made of other weights: other loading and stacking",
    ),
    "attention.bias": TraitText(1, "bias", "biases to load and to add, once over all ranks"),
    "attention.scale": TraitText(
        1, "scale of scores", "the factor on the scores is not what a kernel assumes", _BY_GRAPH
    ),
    "attention.window": TraitText(
        1, "window", "sliding-window attention: mask, cache layout and kernel argument by layer", _BY_GRAPH
    ),
    "attention.softcap": TraitText(
        1, "soft-cap of scores", "scores are capped before the softmax, which no NF attention does",
        "vLLM's attention caps them, checked against the graph; on Neuron this attention runs in torch",
    ),
    "attention.sinks": TraitText(
        1, "sinks", "one more logit for each head in the softmax",
        "both hosts pass them on; on Neuron as the argument `sink`",
    ),
    "attention.qk_norm": TraitText(
        1, "norm of q and k", "query and key are normalized between projection and attention", _AS_WRITTEN
    ),
    "attention.output": TraitText(
        1, "before the output map", "a gate or norm between attention and output map: the two cannot be one call",
        _AS_WRITTEN,
    ),
    "layers.count": TraitText(2, "layers", "another depth"),
    "layers.mixer": TraitText(
        2, "token mixers", "layers that mix tokens without attention: a state beside the key/value cache",
    ),
    "layers.kinds": TraitText(2, "kinds of layers", "a port needs a branch for each kind of layer", _TRACE),
    "position.rotation": TraitText(
        3, "rotary pairs", "numbers are paired in another way, or some layers have no rotation", _AS_WRITTEN
    ),
    "position.width": TraitText(
        3, "rotated", "only a part of each head is rotated: no rotation inside a fused call", _AS_WRITTEN
    ),
    "position.frequencies": TraitText(
        3, "frequencies", "other tables of cosines and sines; by layer, if layers differ", _AS_WRITTEN
    ),
    "position.table": TraitText(
        3, "position table", "positions are added to the embedding, not rotated into q and k", _AS_WRITTEN
    ),
    "position.bias": TraitText(3, "bias of scores", "positions enter as a bias of the scores"),
    "mlp.form": TraitText(4, "form", "another form of MLP: another rule, or experts"),
    "mlp.activation": TraitText(4, "activation", "NF.mlp has SiLU, GELU and tanh GELU"),
    "mlp.sizes": TraitText(4, "sizes", "other sizes: limits of the kernel by rank"),
    "mlp.bias": TraitText(4, "bias", "biases to load; the one of the row-parallel map is added once"),
    "norm.form": TraitText(5, "form", "another order of rounding and weight, another epsilon, or centred"),
    "norm.place": TraitText(5, "place", "norms stand elsewhere: what can be fused with them changes"),
    "norm.final": TraitText(5, "norm before the head", "the last norm is there in one model only"),
    "config.layout": TraitText(
        6, "layout", "the text model's fields lie elsewhere in config.json",
        "the text part is found by transformers; vLLM serves text-only models",
    ),
    "embedding.sizes": TraitText(
        7, "vocabulary × width", "another vocabulary to cut among the ranks",
        "cut among ranks; a vocabulary that does not divide is padded",
    ),
    "embedding.scale": TraitText(
        7, "factor", "embeddings are multiplied by a constant, rounded as the model rounds", _AS_WRITTEN
    ),
    "embedding.norm": TraitText(7, "norm", "embeddings are normalized", _AS_WRITTEN),
    "embedding.extra": TraitText(7, "map to the width", "embeddings are mapped to another width", _AS_WRITTEN),
    "head.tied": TraitText(
        7, "tied head", "head and embedding share one tensor, or do not", "both hosts keep what is tied tied"
    ),
    "head.bias": TraitText(7, "bias of the head", "the head has a bias to load"),
    "moe.router": TraitText(
        8, "router", "order of score, top-k and renormalization",
        "read from the graph: vLLM's experts layer or NF's experts with the same order, or left in torch",
    ),
    "moe.experts": TraitText(8, "experts", "experts to load, stack and share among ranks"),
    "moe.shared": TraitText(8, "shared expert", "an expert for every token beside the chosen ones"),
    "residual.order": TraitText(
        8, "attention and MLP", "side by side or one after the other: what is summed, and when ranks reduce",
        _AS_WRITTEN,
    ),
    "residual.scale": TraitText(
        8, "factors of the residual", "terms of the residual sum are multiplied by constants", _AS_WRITTEN
    ),
    "logits.scale": TraitText(
        8, "factor of the logits", "logits are multiplied by a constant", "both hosts take it from the graph"
    ),
    "logits.soft_cap": TraitText(
        8, "soft-cap of the logits", "logits are capped", "both hosts take it from the graph"
    ),
    "trace": TraitText(8, "traced", "what was not traced is not compared here, nor fused"),
}  # fmt: skip

_WORDS: tuple[tuple[int, str], ...] = (
    (
        8,
        r"expert|router|moe|top_k|aux_loss|logit_scale|logits_scaling|residual_mult|vision|final_logit",
    ),
    (2, r"layer_types|num_hidden_layers|n_layers?$|num_layers$|max_window_layers|interval|_period"),
    (3, r"rope|rotary|max_position|n_positions|n_ctx|alibi|position_embedding"),
    (4, r"hidden_act|activation|intermediate|ffn|mlp|n_inner"),
    (5, r"norm"),
    (7, r"vocab|tie_word|embedding|hidden_size$|n_embd$"),
    (1, r"attention|attn|head|sliding|window|query|qkv|softcap|sink"),
)
FIELDS = tuple((number, re.compile(words)) for number, words in _WORDS)


def point_of(field: str) -> int | None:
    """The point a configuration field is shown under."""
    return next((number for number, words in FIELDS if words.search(field)), None)
