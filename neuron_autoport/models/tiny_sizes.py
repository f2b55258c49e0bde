"""Shrink the sizes in a configuration dict, and only the sizes.

The tables name the fields that are sizes. A field in no table (a scale, an epsilon, a flag, an activation, a
rotary base, a kernel width, an expansion factor) keeps its value. Ratios that are a *kind* of choice are kept:
MHA / GQA / MQA, heads x head_dim against hidden size, partial rotary dimensions, grouped routing, top-1.
A wrong guess cannot do harm silently: `tiny.tiny_config` builds and runs the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


HIDDEN = ("hidden_size", "d_model", "n_embd")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "num_query_groups")
_HEAD_DIMS = ("head_dim", "attention_head_dim", "dim_head", "kv_channels", "attention_head_size")
# Widths that stay in proportion to the hidden size.
_WITH_HIDDEN = (
    "attention_hidden_size", "dim_model_base", "embedding_dim", "encoder_cross_output_size",
    "hidden_size_global", "lru_width", "mamba_d_ssm", "word_embed_proj_dim",
)  # fmt: skip
_INTERMEDIATE = (
    "dense_intermediate_size", "dff", "dim_ff", "feed_forward_size", "ffn_dim", "ffn_hidden_size",
    "intermediate_size", "intermediate_size_mlp", "n_inner", "prefix_dense_intermediate_size",
)  # fmt: skip
_EXPERT_INTERMEDIATE = (
    "expert_ffn_hidden_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
    "shared_expert_intermediate_size", "shared_intermediate_size",
)  # fmt: skip
_EXPERTS = ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts")
_TOP_K = (
    "moe_k", "moe_top_k", "moe_topk", "num_experts_per_tok", "num_experts_per_token", "top_k_experts",
)  # fmt: skip
_GROUPS = ("n_group", "num_expert_group")
_WINDOWS = (
    "attention_chunk_size", "attention_window_size", "floor_scale", "keep_window_size", "log_scaling_n_floor",
    "sliding_window", "sliding_window_size", "window_size",
)  # fmt: skip
_POSITIONS = (
    "context_length", "max_position_embeddings", "max_seq_len", "model_max_length", "n_ctx", "n_positions",
)  # fmt: skip
_VOCABULARIES = ("encoder_hash_byte_group_vocab", "vocab_size", "vocab_size_per_layer_input")
_RANKS = (
    "adapter_rank", "gated_norm_rank", "hc_lowrank", "kv_lora_rank", "laurel_rank", "o_lora_rank",
    "router_hidden_size",
)  # fmt: skip
# Anything else that is a size, with the most it may be.
_AT_MOST = {
    "block_multiple_of": 16, "block_size": 8, "chunk_size": 8, "d_rel": 8, "ffn_round_up_to_multiple_of": 16,
    "heads_per_ngram": 2, "hidden_size_per_layer_input": 16, "index_block_size": 4,
    "index_head_dim": 16, "index_n_heads": 2, "index_topk": 4, "index_topk_blocks": 2,
    "indexer_budget": 8, "indexer_head_dim": 16, "indexer_n_heads": 2,
    "linear_head_dim": 16, "linear_key_head_dim": 16, "linear_num_heads": 2, "linear_num_key_heads": 2,
    "local_attention": 8, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4,
    "make_ngram_vocab_size_divisible_by": 8, "mamba_chunk_size": 8, "mamba_d_state": 8, "mamba_dt_rank": 4,
    "mamba_n_groups": 2, "mamba_ngroups": 2, "n_groups": 2, "n_shared_experts": 2,
    "ngram_vocab_size_base": 64, "num_shared_experts": 2, "o_groups": 2, "ple_embed_dim": 16,
    "position_bias_max_distance": 128, "position_bias_num_buckets": 32, "prompt_length": 4, "prompt_types": 8,
    "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "rel_extent": 16, "segment_types": 8,
    "split_ngram_parts": 4, "ssm_state_size": 8, "state_size": 8, "time_step_rank": 4, "zero_expert_num": 4,
}  # fmt: skip


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
            inherited = {k: v for k, v in whole.items() if k in HIDDEN + HEADS}
            out[key] = shrink(value, sizes, inherited)
        else:
            out[key] = shape.field(key, value)
    _consistent(out, config, shape)
    return out


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((config[n] for n in names if _positive(config.get(n))), 0)


class _Shape:
    """The original's ratios, and the tiny value of each size field."""

    def __init__(self, config: Mapping[str, Any], sizes: Sizes) -> None:
        self.config, self.sizes = config, sizes
        self.hidden = _first(config, HIDDEN) or sizes.hidden
        self.heads = _first(config, HEADS) or sizes.heads
        self.partial = _partial_rotary(config)
        self.sections = _sections(config)
        self.keep_positions = _scaled_rope(config.get("rope_parameters")) or _scaled_rope(
            config.get("rope_scaling")
        )

    def field(self, key: str, value: Any) -> Any:
        """Tiny value of one field; `value` itself when the field is no size, or is None or zero."""
        if isinstance(value, list) and value and all(map(_positive, value)):
            return self._sizes_in_list(key, value)
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
            (HIDDEN, sizes.hidden),
            (HEADS, sizes.heads),
            (_INTERMEDIATE, sizes.intermediate),
            (_EXPERT_INTERMEDIATE, sizes.expert_intermediate),
            (_EXPERTS, min(value, sizes.experts)),
            (_TOP_K, min(value, 2)),
            (_GROUPS, min(value, 4)),
            (("topk_group",), min(value, 2)),
            (_WINDOWS, sizes.window),
            (_POSITIONS, value if self.keep_positions else sizes.positions),
            (_VOCABULARIES, sizes.vocab),
            (_RANKS, min(value, sizes.rank)),
        )
        for names, tiny in tables:
            if key in names:
                return tiny
        if key in _KV_HEADS:
            return self._kv_heads(value, self.heads)
        if key in _HEAD_DIMS:
            return self.head_dim(value)
        if key in _WITH_HIDDEN:
            return max(1, round(value * sizes.hidden / self.hidden))
        return min(value, _AT_MOST.get(key, value))

    def _kv_heads(self, value: int, heads: int) -> int:
        if value >= heads:
            return self.sizes.heads
        return 1 if value == 1 else max(1, self.sizes.heads // 2)

    def head_dim(self, value: int) -> int:
        """Keeps heads * head_dim / hidden, in steps that keep the rotary part a whole, even number."""
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
        rope = self.config.get("qk_rope_head_dim")
        if _positive(rope):
            return self._size("qk_rope_head_dim", int(rope)) // 2
        width = _first(self.config, _HEAD_DIMS) or self.hidden // self.heads
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
        width = _first(original, _HEAD_DIMS) or shape.hidden // shape.heads
        small = (
            shape.head_dim(width) if _first(original, _HEAD_DIMS) else sizes.hidden // sizes.heads
        )
        out["rotary_dim"] = max(2, int(small * original["rotary_dim"] / width) // 2 * 2)
    for heads, width in (("swa_num_attention_heads", "swa_num_key_value_heads"),):
        if _positive(original.get(heads)):
            same = original[heads] == shape.heads
            out[heads] = sizes.heads * (1 if same else 2)
            ratio = original[heads] // max(1, original[width])
            out[width] = out[heads] if ratio == 1 else out[heads] // 2
            out["swa_head_dim"] = shape.head_dim(original["swa_head_dim"])
    _linear_attention(out, original)
    _state_space(out, original, sizes)
    if _positive(original.get("axial_pos_embds_dim", [0])[0]):
        out["axial_pos_embds_dim"] = [sizes.hidden // 4, sizes.hidden - sizes.hidden // 4]
        out["axial_pos_shape"] = [8, sizes.positions // 8]


def _mla(out: dict[str, Any], original: Mapping[str, Any]) -> None:
    same_v = original.get("v_head_dim") == original["qk_nope_head_dim"]
    out["v_head_dim"] = out["qk_nope_head_dim"] if same_v else out["qk_nope_head_dim"] + 8
    out["qk_head_dim"] = out["qk_nope_head_dim"] + out["qk_rope_head_dim"]
    for name in ("qk_rope_head_dim", "v_head_dim", "qk_head_dim"):
        if original.get("head_dim") is not None and original["head_dim"] == original.get(name):
            out["head_dim"] = out[name]
            return


def _linear_attention(out: dict[str, Any], original: Mapping[str, Any]) -> None:
    for value, key in (
        ("linear_num_value_heads", "linear_num_key_heads"),
        ("linear_value_head_dim", "linear_key_head_dim"),
    ):
        if _positive(original.get(value)) and _positive(original.get(key)):
            out[value] = out[key] * max(1, original[value] // original[key])


def _state_space(out: dict[str, Any], original: Mapping[str, Any], sizes: Sizes) -> None:
    """heads * head width = expansion * hidden size, wherever the original has it so."""
    named = (
        ("mamba_n_heads", "mamba_d_head"),
        ("mamba_num_heads", "mamba_head_dim"),
        ("n_mamba_heads", "mamba_headdim"),
        ("num_heads", "head_dim"),
    )
    expand = next((original[e] for e in ("mamba_expand", "expand") if original.get(e)), None)
    if expand is None:
        return
    for heads, width in named:
        if not (_positive(original.get(heads)) and _positive(original.get(width))):
            continue
        inner = (
            out["mamba_d_ssm"] if _positive(out.get("mamba_d_ssm")) else int(expand * sizes.hidden)
        )
        out[heads] = min(original[heads], 8)
        out[width] = max(1, inner // out[heads])
