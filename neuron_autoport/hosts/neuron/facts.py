"""What the host knows of an attention layer, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_HEAD = 128


@dataclass(frozen=True)
class LayerFacts:
    """One attention layer.

    path: dotted path of the attention module below the base model; it is the layer's cache name.
    heads, kv_heads, head_dim: of the whole model, not of a rank. window: visible positions of a
    query, itself included; None for all before it. scale: factor on the scores. softcap: c of
    c * tanh(scores / c). sinks: one extra logit per head.
    """

    path: str
    class_name: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    scale: float
    softcap: float | None
    sinks: bool


def attention_limit(facts: LayerFacts) -> str | None:
    """Why a layer's prefill attention cannot be an NF function; None if it can."""
    if facts.softcap is not None:
        return f"scores are soft-capped at {facts.softcap:g}, which no NF attention does"
    if facts.head_dim > LARGEST_HEAD:
        return f"heads are {facts.head_dim} wide, kernels take {LARGEST_HEAD} at most"
    return None
