"""Shrink the sizes in a configuration dict, and only the sizes.

The tables name the fields that are sizes. A field in no table (a scale, an epsilon, a flag, an
activation, a
rotary base, a kernel width, an expansion factor) keeps its value. Ratios that are a *kind* of
choice are kept: MHA / GQA / MQA, heads x head_dim against hidden size, partial rotary dimensions,
grouped routing, top-1. A wrong guess cannot do harm silently: `tiny.tiny_config` builds and runs
the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from neuron_autoport.models import tiny_fields as fields


@dataclass(frozen=True)
class Sizes:
    """Target sizes: everything else follows from these and from the original's ratios."""

    hidden: int = 64
    heads: int = 4
    intermediate: int = 96
    expert_intermediate: int = 48
    experts: int = 8
    vocab: int = 128
    positions: int = 128
    window: int = 4
    rank: int = 16


def shrink(
    config: Mapping[str, Any], sizes: Sizes, parent: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A copy of a configuration dict with tiny sizes; nested configurations are shrunk as well.

    Args:
        config: `PretrainedConfig.to_dict()` or one of its nested dicts.
        sizes: what to shrink to.
        parent: the dict that holds `config`: gives hidden size and heads where `config` has none.
    """
    whole = {**(parent or {}), **config}
    shape = _Shape(whole, sizes)
    out: dict[str, Any] = {}
    for key, value in config.items():
        if key == "per_layer_config" and isinstance(value, dict):
            out[key] = {k: {f: shape.field(f, v) for f, v in o.items()} for k, o in value.items()}
        elif key in ("rope_parameters", "rope_scaling"):
            out[key] = shape.rope(value)
        elif isinstance(value, dict) and (key.endswith("_config") or "model_type" in value):
            inherited = {k: v for k, v in whole.items() if k in fields.HIDDEN + fields.HEADS}
            out[key] = shrink(value, _part_sizes(config, value, sizes), inherited)
        else:
            out[key] = shape.field(key, value)
    _consistent(out, config, shape)
    return out


def _part_sizes(config: Mapping[str, Any], part: Mapping[str, Any], sizes: Sizes) -> Sizes:
    """Sizes of a nested configuration: where only parts have a hidden size, ratios are kept."""
    widths = [_first(v, fields.HIDDEN) for v in config.values() if isinstance(v, dict)]
    own = _first(part, fields.HIDDEN)
    if _first(config, fields.HIDDEN) or not own:
        return sizes
    step = 8 * sizes.heads
    return replace(sizes, hidden=max(step, sizes.hidden * own // max(widths) // step * step))


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((config[n] for n in names if _positive(config.get(n))), 0)


class _Shape:
    """The original's ratios, and the tiny value of each size field."""

    def __init__(self, config: Mapping[str, Any], sizes: Sizes) -> None:
        self.config, self.sizes = config, sizes
        self.hidden = _first(config, fields.HIDDEN) or sizes.hidden
        self.heads = _first(config, fields.HEADS) or sizes.heads
        self.partial = _partial_rotary(config)
        self.sections = _sections(config)
        self.keep_positions = _scaled_rope(config.get("rope_parameters")) or _scaled_rope(
            config.get("rope_scaling")
        )

    def field(self, key: str, value: Any) -> Any:
        """Tiny value of one field; `value` itself when the field is no size, or is None or zero."""
        if isinstance(value, list) and value and all(map(_positive, value)):
            return self._sizes_in_list(key, value)
        if isinstance(value, dict) and value and all(map(_positive, value.values())):
            return {kind: self._size(key, v) for kind, v in value.items()}
        if key.endswith(("_token_id", "_token_index", "_token_ids")):
            return self._token(key, value)
        if not _positive(value):
            return value
        return self._size(key, value)

    def _sizes_in_list(self, key: str, value: list[int]) -> list[int]:
        if key == "num_attention_heads_per_layer":
            return [self.sizes.heads * (1 if v == min(value) else 2) for v in value]
        if key.endswith(("_token_id", "_token_ids")):
            return list(dict.fromkeys(self._token(key, v) for v in value))
        return [self._size(key, v) for v in value]

    def _size(self, key: str, value: int) -> int:
        sizes = self.sizes
        tables: tuple[tuple[tuple[str, ...], int], ...] = (
            (fields.HIDDEN, sizes.hidden),
            (fields.HEADS, sizes.heads),
            (fields.INTERMEDIATE, sizes.intermediate),
            (fields.EXPERT_INTERMEDIATE, sizes.expert_intermediate),
            (fields.EXPERTS, min(value, sizes.experts)),
            (fields.TOP_K, min(value, 2)),
            (fields.GROUPS, min(value, 4)),
            (("topk_group",), min(value, 2)),
            (fields.WINDOWS, sizes.window),
            (fields.POSITIONS, value if self.keep_positions else sizes.positions),
            (fields.VOCABULARIES, sizes.vocab),
            (fields.RANKS, min(value, sizes.rank)),
        )
        for names, tiny in tables:
            if key in names:
                return tiny
        if key in fields.KV_HEADS:
            return self._kv_heads(value, self.heads)
        if key in fields.HEAD_DIMS:
            return self.head_dim(value)
        if key in fields.WITH_HIDDEN:
            return max(1, round(value * sizes.hidden / self.hidden))
        return min(value, fields.AT_MOST.get(key, value))

    def _kv_heads(self, value: int, heads: int) -> int:
        if value >= heads:
            return self.sizes.heads
        return 1 if value == 1 else max(1, self.sizes.heads // 2)

    def head_dim(self, value: int) -> int:
        """Keeps heads * head_dim / hidden, in steps that keep the rotary part an even number."""
        wanted = value * self.heads / self.hidden * self.sizes.hidden / self.sizes.heads
        step = math.lcm(8, math.ceil(2 / self.partial))
        least = math.ceil(2 * self.sections / self.partial)
        return max(step, step * round(wanted / step), step * math.ceil(least / step))

    def _token(self, key: str, value: Any) -> Any:
        """Ids beyond the vocabulary move to its end, each kind of token to a place of its own."""
        if not _positive(value) or value < self.sizes.vocab:
            return value
        return self.sizes.vocab - 1 - sum(map(ord, key)) % 16

    def rotary_half(self) -> int:
        """Number of rotated pairs per head in the tiny model."""
        if rope := _first(self.config, ("qk_rope_head_dim",)):
            return self._size("qk_rope_head_dim", rope) // 2
        width = _first(self.config, fields.HEAD_DIMS) or self.hidden // self.heads
        return int(self.head_dim(width) * self.partial) // 2

    def rope(self, value: Any) -> Any:
        """Rotary parameters: values stay, lists with one entry per rotated pair are cut."""
        if not isinstance(value, dict):
            return value
        out = {}
        half = self.rotary_half()
        for key, item in value.items():
            if isinstance(item, dict):
                out[key] = self.rope(item)
            elif key in ("short_factor", "long_factor") and isinstance(item, list):
                out[key] = [item[i * len(item) // half] for i in range(half)]
            elif key == "mrope_section" and isinstance(item, list):
                small = [half // len(item)] * len(item)
                small[0] += half - sum(small)
                out[key] = small
            else:
                out[key] = item
        return out


def _rope_dicts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = [config]
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, dict):
            found += [value, *(v for v in value.values() if isinstance(v, dict))]
    return found


def _partial_rotary(config: Mapping[str, Any]) -> float:
    factors = [d.get("partial_rotary_factor") for d in _rope_dicts(config)]
    given = [float(f) for f in factors if isinstance(f, int | float) and 0 < f <= 1]
    return min(given, default=1.0)


def _sections(config: Mapping[str, Any]) -> int:
    lists = [d.get("mrope_section") for d in _rope_dicts(config)]
    return max((len(section) for section in lists if isinstance(section, list)), default=1)


def _scaled_rope(rope: Any) -> bool:
    """True if a rotary scaling refers to lengths: then the lengths are values, not sizes."""
    if not isinstance(rope, dict):
        return False
    kind = rope.get("rope_type", rope.get("type", "default"))
    return kind != "default" or any(_scaled_rope(v) for v in rope.values())


def _consistent(out: dict[str, Any], original: Mapping[str, Any], shape: _Shape) -> None:
    """Mend fields that follow from several others."""
    sizes = shape.sizes
    if _positive(original.get("qk_nope_head_dim")):
        _mla(out, original)
    if _positive(original.get("rotary_dim")):
        out["rotary_dim"] = _rotary_dim(original, shape)
    if _positive(original.get("swa_num_attention_heads")):
        _window_heads(out, original, shape)
    for key in ("index_head_dim", "indexer_head_dim"):
        # An index head of an attention head's width rotates as many dimensions.
        if _positive(original.get(key)) and original[key] == original.get("head_dim"):
            out[key] = out["head_dim"]
    _linear_attention(out, original)
    _state_space(out, original, sizes)
    if _positive(original.get("axial_pos_embds_dim", [0])[0]):
        out["axial_pos_embds_dim"] = [sizes.hidden // 4, sizes.hidden - sizes.hidden // 4]
        out["axial_pos_shape"] = [8, sizes.positions // 8]


def _rotary_dim(original: Mapping[str, Any], shape: _Shape) -> int:
    """The same fraction of the head as in the original, rounded down to an even number."""
    width = _first(original, fields.HEAD_DIMS)
    small = shape.head_dim(width) if width else shape.sizes.hidden // shape.sizes.heads
    width = width or shape.hidden // shape.heads
    return max(2, small * int(original["rotary_dim"]) // width // 2 * 2)


def _window_heads(out: dict[str, Any], original: Mapping[str, Any], shape: _Shape) -> None:
    """Window layers with heads of their own: as many as the others have, or twice as many."""
    same = original["swa_num_attention_heads"] == shape.heads
    out["swa_num_attention_heads"] = heads = shape.sizes.heads * (1 if same else 2)
    grouped = original["swa_num_key_value_heads"] < original["swa_num_attention_heads"]
    out["swa_num_key_value_heads"] = heads // 2 if grouped else heads
    out["swa_head_dim"] = shape.head_dim(original["swa_head_dim"])


def _mla(out: dict[str, Any], original: Mapping[str, Any]) -> None:
    same_v = original.get("v_head_dim") == original["qk_nope_head_dim"]
    out["v_head_dim"] = out["qk_nope_head_dim"] if same_v else out["qk_nope_head_dim"] + 8
    out["qk_head_dim"] = out["qk_nope_head_dim"] + out["qk_rope_head_dim"]
    for name in ("qk_rope_head_dim", "v_head_dim", "qk_head_dim"):
        if original.get("head_dim") is not None and original["head_dim"] == original.get(name):
            out["head_dim"] = out[name]
            return


def _linear_attention(out: dict[str, Any], original: Mapping[str, Any]) -> None:
    for large, small in fields.LINEAR_PAIRS:
        if _positive(original.get(large)) and _positive(original.get(small)):
            out[large] = out[small] * max(1, original[large] // original[small])


def _state_space(out: dict[str, Any], original: Mapping[str, Any], sizes: Sizes) -> None:
    """heads * head width = expansion * hidden size, wherever the original has it so."""
    expand = next((original[e] for e in ("mamba_expand", "expand") if original.get(e)), None)
    if expand is None:
        return
    for heads, width in fields.STATE_SPACE_HEADS:
        if not (_positive(original.get(heads)) and _positive(original.get(width))):
            continue
        inner = (
            out["mamba_d_ssm"] if _positive(out.get("mamba_d_ssm")) else int(expand * sizes.hidden)
        )
        out[heads] = min(original[heads], 8)
        out[width] = max(1, inner // out[heads])
