"""Tiny configurations of every decoder-only model type transformers has, from their defaults.

`benchmarks/decoder_only_types.txt` lists the types (transformers 5.19). What a tiny configuration must keep is
checked against the original configuration and, for layer patterns and rotary widths, against
hand-written values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.architectures import MENDED, TYPES
from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.source import load_model_config
from neuron_autoport.models.tiny import TinyConfigError, tiny_config
from neuron_autoport.models.tiny_layers import cut_layers, kept_layers
from neuron_autoport.models.tiny_sizes import Sizes, shrink


def run(config: PretrainedConfig) -> torch.Tensor:
    tokens = torch.tensor([[5, 17, 3, 88, 41, 41, 9, 60, 72, 12, 33, 7]])
    with torch.no_grad():
        logits: torch.Tensor = real_model(config)(input_ids=tokens, use_cache=False).logits
    return logits


def values(data: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """All floats, flags, names and Nones in a configuration dict, with their place."""
    for key, value in data.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, dict) and key != "per_layer_config":
            yield from values(value, place)
        elif isinstance(value, bool | float | str | None):
            yield place, value


@pytest.mark.parametrize("model_type", TYPES)
def test_every_decoder_only_type(model_type: str) -> None:
    original = CONFIG_MAPPING[model_type](**MENDED.get(model_type, {}))
    before = copy.deepcopy(original.to_dict())
    tiny = tiny_config(original)
    assert original.to_dict() == before
    assert type(tiny) is type(original)
    text = tiny.get_text_config()
    logits = run(tiny)
    assert logits.shape == (1, 12, text.vocab_size) and torch.isfinite(logits).all()
    assert sum(p.numel() for p in meta_model(tiny).parameters()) < 4_000_000
    kept = dict(values(tiny.to_dict()))
    text_key = next((k for k in original.sub_configs if getattr(original, k) is not None), "")
    for place, value in values(before):
        if text_key and not place.startswith(("text_config", "attn_config", "ffn_config")):
            continue  # a vision part is not the text model's
        assert kept.get(place) == value, place


def test_the_list_is_complete_enough() -> None:
    assert len(TYPES) == len(set(TYPES)) >= 134


def test_layer_pattern_is_kept() -> None:
    tiny = tiny_config(Gemma3TextConfig())
    assert tiny.layer_types == ["sliding_attention"] * 5 + ["full_attention"]
    assert tiny.num_hidden_layers == 6 and tiny.sliding_window == 4
    assert tiny_config(Gemma2Config()).layer_types == ["sliding_attention", "full_attention"]


def test_far_apart_kinds_are_picked() -> None:
    types = ["full_attention"] * 20 + ["sliding_attention"] * 8
    config = Qwen2Config(num_hidden_layers=28, layer_types=types, use_sliding_window=True)
    tiny = tiny_config(config)
    assert tiny.layer_types == ["full_attention", "sliding_attention"]


def test_dense_layers_before_the_experts() -> None:
    tiny = tiny_config(DeepseekV3Config())  # the first three layers are dense
    names = [type(layer.mlp).__name__ for layer in meta_model(tiny).model.layers]
    assert names == ["DeepseekV3MLP"] * 3 + ["DeepseekV3MoE"]
    assert (tiny.n_group > 1, tiny.topk_group > 1, tiny.num_experts_per_tok > 1) == (True,) * 3


def test_head_sizes_that_differ_between_layers_still_do() -> None:
    tiny = tiny_config(CONFIG_MAPPING["gemma4_text"]())
    layers = meta_model(tiny).model.layers
    widths = {layer.self_attn.q_norm.weight.shape[0] for layer in layers}
    assert len(widths) == 2 and max(widths) == 2 * min(widths)


@pytest.mark.parametrize(
    ("heads", "kv", "expected"),
    [(32, 32, (4, 4)), (32, 8, (4, 2)), (14, 2, (4, 2)), (8, 1, (4, 1))],
)
def test_kind_of_head_grouping(heads: int, kv: int, expected: tuple[int, int]) -> None:
    config = LlamaConfig(
        hidden_size=heads * 64, num_attention_heads=heads, num_key_value_heads=kv, head_dim=64
    )
    tiny = tiny_config(config)
    assert (tiny.num_attention_heads, tiny.num_key_value_heads) == expected


def test_heads_wider_than_the_hidden_size_stay_so() -> None:
    wide = tiny_config(Qwen3Config(hidden_size=1024, num_attention_heads=16, head_dim=128))
    assert wide.head_dim * wide.num_attention_heads == 2 * wide.hidden_size
    same = tiny_config(Qwen3Config(hidden_size=2048, num_attention_heads=16, head_dim=128))
    assert same.head_dim * same.num_attention_heads == same.hidden_size


@pytest.mark.parametrize(
    ("config", "fraction"),
    [(StableLmConfig(), 0.25), (PhiConfig(), 0.5), (GPTNeoXConfig(), 0.25), (LlamaConfig(), 1.0)],
    ids=lambda v: getattr(v, "model_type", str(v)),
)
def test_partial_rotary(config: PretrainedConfig, fraction: float) -> None:
    tiny = tiny_config(config)
    rotary = next(m for n, m in real_model(tiny).named_modules() if n.endswith("rotary_emb"))
    head = tiny.hidden_size // tiny.num_attention_heads
    assert 2 * rotary.inv_freq.numel() == head * fraction


def test_values_that_look_like_sizes_are_kept() -> None:
    assert tiny_config(Gemma2Config(query_pre_attn_scalar=144)).query_pre_attn_scalar == 144
    config = GraniteConfig(attention_multiplier=0.0078125, logits_scaling=8.0, rms_norm_eps=1e-2)
    tiny = tiny_config(config)
    assert (tiny.attention_multiplier, tiny.logits_scaling) == (0.0078125, 8.0)
    assert tiny.rms_norm_eps == 1e-2


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    ],
    ids=lambda r: r["rope_type"],
)  # fmt: skip
def test_rotary_scaling_is_kept(rope: dict[str, Any]) -> None:
    config = LlamaConfig(max_position_embeddings=32768, rope_parameters=rope)
    tiny = tiny_config(config)
    assert tiny.max_position_embeddings == 32768
    assert {k: tiny.rope_parameters[k] for k in rope} == rope


def test_longrope_factors_are_cut_to_the_rotary_width() -> None:
    factors = [1.0 + i / 48 for i in range(48)]
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors,
            "long_factor": factors[::-1], "original_max_position_embeddings": 4096}  # fmt: skip
    config = Phi3Config(
        max_position_embeddings=131072, original_max_position_embeddings=4096, rope_parameters=rope
    )
    tiny = tiny_config(config)
    head = tiny.hidden_size // tiny.num_attention_heads
    short = tiny.rope_parameters["short_factor"]
    assert len(short) == len(tiny.rope_parameters["long_factor"]) == head // 2
    assert short == sorted(short) and set(short) < set(factors)


def test_window_is_shorter_than_the_prompt_and_matters() -> None:
    tiny = tiny_config(MistralConfig(sliding_window=4096))
    assert tiny.sliding_window == 4
    open_window = copy.deepcopy(tiny)
    open_window.sliding_window = None
    difference = (run(tiny) - run(open_window)).abs().amax(-1)[0]
    assert difference[:4].max() < 1e-4 < difference[4:].min()


def test_sizes_by_kind_of_layer_are_sizes() -> None:
    """128 tokens to an entry would never be seen by a small model; numbers that are no sizes stay."""
    tiny = tiny_config(CONFIG_MAPPING["deepseek_v4"]())
    assert tiny.compress_rates == {
        "compressed_sparse_attention": 4,
        "heavily_compressed_attention": 5,
    }
    kept = {"rates": {"a": 4, "b": 128}}
    assert shrink(kept, Sizes()) == kept


def test_special_tokens_are_inside_the_vocabulary() -> None:
    config = LlamaConfig(
        vocab_size=128256, bos_token_id=128000, eos_token_id=[128001, 128009], pad_token_id=128004
    )
    tiny = tiny_config(config)
    ids = [tiny.bos_token_id, *tiny.eos_token_id, tiny.pad_token_id]
    assert all(0 <= i < tiny.vocab_size for i in ids)
    assert tiny_config(LlamaConfig(pad_token_id=None)).pad_token_id is None


@pytest.mark.parametrize("tied", [True, False])
def test_ties_are_kept(tied: bool) -> None:
    model = meta_model(tiny_config(LlamaConfig(tie_word_embeddings=tied)))
    same = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert same is tied


def test_from_a_source_and_attention_implementation() -> None:
    source = load_model_config("llama")
    source.config._attn_implementation = "eager"
    tiny = tiny_config(source)
    assert tiny._attn_implementation == "eager" and source.config.hidden_size == 4096


def test_failure_says_why() -> None:
    with pytest.raises(TinyConfigError) as caught:
        tiny_config(CONFIG_MAPPING["nemotron"]())
    assert "NoneType" in caught.value.what and caught.value.where == "nemotron"


def test_a_model_that_cannot_run_is_refused() -> None:
    with pytest.raises(TinyConfigError, match="topk"):
        tiny_config(CONFIG_MAPPING["deepseek_v2"]())


def test_kept_layers() -> None:
    assert kept_layers(["a"] * 8) == [[0, 1]]
    assert kept_layers(["a", "a", "b", "a"])[0] == [0, 1, 2]
    assert kept_layers(["a"] * 10 + ["b"] * 10)[:2] == [[0, 10], list(range(11))]
    assert kept_layers(["a"]) == [[0]]


def test_cut_layers() -> None:
    config = {
        "num_hidden_layers": 6, "layer_types": list("abcabc"), "moe_layers": [1, 3, 5],
        "first_k_dense_replace": 3, "num_kv_shared_layers": 2, "hidden_size": 6,
        "per_layer_config": {"01": {"head_dim": 8}, "4": {"head_dim": 4}}, "sizes": [7, 8],
    }  # fmt: skip
    assert cut_layers(config, [0, 1, 5], 6) == {
        "num_hidden_layers": 3, "layer_types": ["a", "b", "c"], "moe_layers": [1, 2],
        "first_k_dense_replace": 2, "num_kv_shared_layers": 1, "hidden_size": 6,
        "per_layer_config": {1: {"head_dim": 8}}, "sizes": [7, 8],
    }  # fmt: skip
