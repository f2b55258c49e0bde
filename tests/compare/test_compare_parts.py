"""Folding by layer, frequencies by formula, configuration fields, and configurations that disagree."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from neuron_autoport.compare.attention import describe
from neuron_autoport.compare.build import load_side
from neuron_autoport.compare.fields import disagreements, field_diffs, layout
from neuron_autoport.compare.flat import Flat
from neuron_autoport.compare.points import POINTS, TRAITS, point_of
from neuron_autoport.compare.reading import fold, ranges
from neuron_autoport.models.source import ModelSource, load_model_config
from neuron_autoport.port import port_model
from neuron_autoport.rules.sources import load_library


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ("aaaa", "a"),
        ("abab", "by turns: 1 × a, 1 × b"),
        ("aabaabaa", "by turns: 2 × a, 1 × b"),
        ("aaab", "a in layers 0-2; b in layers 3"),
        ("abba", "a in layers 0, 3; b in layers 1-2"),
        ("", "none"),
        ("a.a.", "a"),  # layers that have no such thing do not count
        ("a.b.", "a in layers 0; b in layers 2"),
    ],
)
def test_fold(values: str, text: str) -> None:
    assert fold({i: v for i, v in enumerate(values) if v != "."}, len(values)) == text


def test_ranges_are_cut() -> None:
    assert ranges([0, 1, 2, 5]) == "0-2, 5"
    assert ranges(range(0, 20, 2)) == "0, 2, 4, … (10 ranges)"


def _inverse(base: float, count: int) -> torch.Tensor:
    return torch.tensor([base ** (-i / count) for i in range(count)], dtype=torch.float32)


def test_frequencies_are_named_by_their_formula() -> None:
    assert describe(_inverse(10000.0, 64)) == "base 10000"
    assert describe(_inverse(500000.0, 32)) == "base 500000"
    assert describe(_inverse(1000000.0, 128) / 8) == "base 1000000, divided by 8"
    bent = _inverse(10000.0, 64)
    bent[32:] /= 4
    assert describe(bent).startswith("scaled, from 1 to ")
    assert describe(torch.tensor([1.0])) == "one frequency, 1"


def test_a_buffer_has_the_value_of_a_real_model() -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "vocab_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(**sizes, rope_parameters=rope)
    library = load_library([])
    flat = Flat(port_model(config, library), library)
    found = flat.buffer("model.rotary_emb.inv_freq")
    assert found is not None
    assert torch.equal(found, LlamaRotaryEmbedding(config).inv_freq)
    assert flat.buffer("model.norm.weight") is None
    assert flat.buffer("no.such.buffer") is None


def test_fields_that_differ_and_fields_of_one_side() -> None:
    a = LlamaConfig(rms_norm_eps=1e-5)
    b = LlamaConfig(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
    b.own_field = (1, 2)
    found = {f.name: f for f in field_diffs(a, b)}
    assert set(found) == {
        "rms_norm_eps", "rope_parameters.rope_type", "rope_parameters.factor", "own_field",
    }  # fmt: skip
    assert (found["rms_norm_eps"].a, found["rms_norm_eps"].b, found["rms_norm_eps"].point) == (
        1e-5, 1e-6, 5,
    )  # fmt: skip
    factor, own = found["rope_parameters.factor"], found["own_field"]
    assert (factor.in_a, factor.in_b, factor.b, factor.point) == (False, True, 2.0, 3)
    assert (own.in_a, own.b, own.point) == (False, [1, 2], None)


@pytest.mark.parametrize(
    ("field", "point"),
    [
        ("num_attention_heads", 1), ("num_key_value_heads", 1), ("sliding_window", 1),
        ("layer_types", 2), ("rope_theta", 3), ("rope_parameters.factor", 3),
        ("partial_rotary_factor", 3), ("hidden_act", 4), ("hidden_activation", 4),
        ("intermediate_size", 4), ("rms_norm_eps", 5), ("tie_word_embeddings", 7), ("vocab_size", 7),
        ("final_logit_softcapping", 8), ("num_experts_per_tok", 8), ("pad_token_id", None),
    ],
)  # fmt: skip
def test_fields_stand_at_the_point_they_show(field: str, point: int | None) -> None:
    assert point_of(field) == point


def test_every_trait_belongs_to_a_point() -> None:
    assert {t.point for t in TRAITS.values()} == {p.number for p in POINTS} == set(range(1, 9))


def test_layout() -> None:
    text = load_model_config("llama")
    assert layout(text) == "flat"
    nested = load_model_config("gemma3")
    assert layout(nested) == "nested: text_config, vision_config"


WRONG: dict[str, tuple[Any, str]] = {
    "num_attention_heads": (16, "8 query heads"),
    "num_key_value_heads": (8, "4 key/value heads"),
    "head_dim": (128, "256 numbers in a head"),
    "num_hidden_layers": (27, "layers: 26"),
    "sliding_window": (512, "window by turns: 1 × 4096, 1 × none"),
    "hidden_activation": ("silu", "activation gelu_tanh"),
    "rms_norm_eps": (1e-5, "eps 1e-06"),
    "partial_rotary_factor": (0.5, "rotated 256 of 256"),
    "tie_word_embeddings": (False, "tied head: yes"),
    "final_logit_softcapping": (20.0, "soft-cap of logits: 30"),
    "attn_logit_softcapping": (20.0, "soft-cap of scores: 50"),
}


def test_a_configuration_that_disagrees_with_the_graph_is_named() -> None:
    source = load_model_config("gemma2")
    reading = load_side(source, load_library([])).reading
    assert disagreements("a", source, reading) == []
    for field, (value, graph) in WRONG.items():
        config = copy.deepcopy(source.text_config)
        setattr(config, field, value)
        wrong: ModelSource = replace(source, text_config=config)
        found = [(d.field, d.value, d.graph) for d in disagreements("b", wrong, reading)]
        assert found == [(field, value, graph)]
