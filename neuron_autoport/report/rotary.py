"""Channels of a head that the graph rotates, against those that the configuration tells.

A field such as `partial_rotary_factor` may be in a configuration that the model's code, in this version of
transformers, does not read. Then all of a head is rotated where a part should be: fluent nonsense, no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neuron_autoport.report.schema_places import Place, WarningInfo
from neuron_autoport.rewrite.reasons import CODES
from neuron_autoport.trace.ops import OpGraph
from neuron_autoport.trace.spans import Span

CODE = "AP302"

# Operations that turn each pair of channels, whatever the model calls them.
_ROTATED = frozenset({"rotate_half", "rotate_pairs", "pairs_as_complex"})
# Fields of that number itself, of a head's width, and of the part of it that is rotated.
_WIDTHS = ("rotary_dim", "qk_rope_head_dim")
_HEADS = ("head_dim", "kv_channels", "global_head_dim", "swa_head_dim", "index_head_dim",
          "indexer_head_dim")  # fmt: skip
_FACTORS = ("partial_rotary_factor", "rotary_pct")
_ROPE = ("rope_parameters", "rope_scaling")


def rotary_warnings(
    graph: OpGraph, told: Mapping[int, str], place: Callable[[Span], Place]
) -> Iterator[WarningInfo]:
    """One for each number of channels that a class rotates and the configuration does not tell.

    Args:
        told: of `told_widths`; where it is empty, nothing is held against the graph.
        place: a span as reports have it.
    """
    seen = set(told)
    said = " or ".join(f"{width} ({why})" for width, why in sorted(told.items()))
    for op in graph.named(_ROTATED) if told else ():
        width = op.inputs[0].shape[-1]
        if width in seen:
            continue
        seen.add(width)
        message = f"{width} channels of a head are rotated; the configuration says {said}"
        where = place(op.spans[0]) if op.spans else None
        yield WarningInfo(code=CODE, meaning=CODES[CODE], message=message, place=where)


def told_widths(config: Any) -> dict[int, str]:
    """Channels that a configuration says are rotated, each with the fields that say so; empty if none do.

    Several where layers or parts differ: which of them has which is the model's business.
    """
    if config is None:
        return {}
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    fields = config.to_dict() if hasattr(config, "to_dict") else dict(vars(config))
    exact = {n: k for d in _dicts(fields) for k in _WIDTHS if (n := _size(d.get(k)))}
    if exact:
        return exact
    factors = _factors(fields)
    return {
        _even(head * factor): text + ("" if factor == 1.0 else f" × {factor:g}")
        for head, text in _heads(fields).items()
        for factor in sorted(factors)
    }


def _dicts(fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The fields, and those of the configurations in them."""
    yield fields
    for value in fields.values():
        if isinstance(value, dict):
            yield from _dicts(value)


def _heads(fields: Mapping[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for part in _dicts(fields):
        own = {n: k for k in _HEADS if (n := _size(part.get(k)))}
        hidden, heads = _size(part.get("hidden_size")), _size(part.get("num_attention_heads"))
        if not own and hidden and heads:
            own.setdefault(hidden // heads, "hidden_size / num_attention_heads")
        found |= own
    return found


def _factors(fields: Mapping[str, Any]) -> set[float]:
    ropes = [r for part in _dicts(fields) for k in _ROPE if isinstance(r := part.get(k), dict)]
    kinds = [kind for rope in ropes for kind in rope.values() if isinstance(kind, dict)]
    found = {f for part in (fields, *ropes) if (f := _factor(part)) is not None}
    by_kind = [_factor(kind) for kind in kinds]
    if not found and (not by_kind or None in by_kind):
        found.add(1.0)
    return found | {f for f in by_kind if f is not None}


def _factor(fields: Mapping[str, Any]) -> float | None:
    if (
        fields.get("rope_type") == "proportional"
    ):  # the rest is rotated by nothing: as wide as the head
        return 1.0
    given = (fields.get(k) for k in _FACTORS)
    return next((float(f) for f in given if isinstance(f, int | float) and 0 < f <= 1), None)


def _size(value: Any) -> int:
    """The value, if it is a number of things; else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _even(width: float) -> int:
    """Rotated are pairs: 21 channels have 11 frequencies, which is 22."""
    return int(width) + int(width) % 2
