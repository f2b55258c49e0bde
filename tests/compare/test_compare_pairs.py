"""What two models do differently, as read from their graphs, against tables written by hand.

The tables come from the models' papers and modeling code, at the default configurations of transformers.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from neuron_autoport.compare import schema as s
from neuron_autoport.compare.build import Side, compare, load_side
from neuron_autoport.compare.points import TRAITS
from neuron_autoport.models.source import load_model_config
from neuron_autoport.rules.sources import load_library

RMS = "RMS norm, rounded to the input's dtype and then multiplied by the weight, eps 1e-06"
CENTRED = "RMS norm with a weight kept around zero, used as 1 + weight in float32, eps 1e-06"
SIZES = {"embedding.sizes", "mlp.sizes"}  # given by the configuration, looked at elsewhere

DIFFERENT = {
    ("llama", "qwen2"): {"attention.bias": ("none", "on q, k, v")},
    ("qwen2", "qwen3"): {
        "attention.bias": ("on q, k, v", "none"),
        "attention.qk_norm": ("none", f"q, k: {RMS}, over each head, before the rotation"),
    },
    ("gemma2", "gemma3_text"): {
        "attention.window": ("by turns: 1 × 4096, 1 × none", "by turns: 5 × 4096, 1 × none"),
        "attention.softcap": ("50", "none"),
        "attention.qk_norm": ("none", f"q, k: {CENTRED}, over each head, before the rotation"),
        "layers.kinds": (
            "2 kinds, differing in window", "2 kinds, differing in window, frequencies",
        ),
        "position.frequencies": ("base 10000", "by turns: 5 × base 10000, 1 × base 1000000"),
        "logits.soft_cap": ("30", "none"),
    },
    ("llama", "gpt_neox"): {
        "attention.heads": (
            "32 query, 32 key/value, 128 wide", "64 query, 64 key/value, 96 wide",
        ),
        "attention.projections": ("three linear maps", "one packed linear map"),
        "attention.bias": ("none", "on q, k, v, output"),
        "attention.scale": ("0.0883883 (head width ^ -0.5)", "0.102062 (head width ^ -0.5)"),
        "layers.count": ("32", "44"),
        "position.width": ("128 of 128", "24 of 96"),
        "mlp.form": ("gated", "not gated"),
        "mlp.activation": ("silu", "gelu"),
        "mlp.bias": ("none", "on up and down"),
        "norm.form": (RMS, "layer norm, with weight and bias, eps 1e-05"),
        "residual.order": ("one after the other", "attention and MLP side by side"),
    },
}  # fmt: skip
# Single facts of further models, each with a trait that the pairs do not have.
HAVE = {
    "olmo2": {
        "norm.place": "attention: after; MLP: after",
        "attention.qk_norm": "q, k: RMS norm, multiplied by the weight in float32 and then rounded, eps 1e-05, "
        "over all 4096 numbers, before the rotation",
    },
    "cohere2": {
        "attention.window": "by turns: 3 × 4096, 1 × none",
        "position.rotation": "by turns: 3 × neighbouring pairs, 1 × none",
        "residual.order": "attention and MLP side by side",
        "logits.scale": "× 0.0625",
        "head.tied": "yes",
    },
    "mixtral": {
        "mlp.form": "mixture of experts",
        "moe.router": "softmax, top 2 of 8, renormalized",
        "moe.shared": "none",
        "position.frequencies": "base 1000000",
    },
    "opt": {
        "position.table": "2050×768",  # 2048 positions, and 2 that are never used
        "position.rotation": "none",
        "attention.scale": "0.125 (head width ^ -0.5)",  # on the query, before the attention
        "mlp.activation": "relu",
        "head.tied": "yes",
    },
    "gptj": {
        "position.rotation": "neighbouring pairs",  # rows of a table of sines, chosen by position
        "attention.scale": "not known",  # attention is written out, not a call of the interface
        "attention.window": "not known",
        "head.bias": "yes",
    },
    "bloom": {
        "position.bias": "added to the scores",
        "embedding.norm": "layer norm, with weight and bias, eps 1e-05",
        "attention.heads": "8 query, 8 key/value, 8 wide",
    },
    "mamba2": {"attention.window": "not read", "moe.router": "not read"},
    # It halves its stream every sixth layer, which is followed to there only: nothing is claimed.
    "rwkv": {
        "layers.count": "not read",
        "trace": "the residual stream could not be followed beyond div",
    },
    "gpt_oss": {"attention.sinks": "yes", "moe.router": "top 4 of 128, softmax"},
    "qwen3_next": {
        "layers.mixer": "by turns: 3 × other than attention, 1 × attention",
        "attention.output": "a sigmoid gate",
        "moe.shared": "shared expert, gated",
    },
}  # fmt: skip


@functools.cache
def side(name: str) -> Side:
    return load_side(load_model_config(name), load_library([]))


@functools.cache
def comparison(a: str, b: str) -> s.Comparison:
    return compare(side(a), side(b))


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_exactly_what_differs_is_found(a: str, b: str) -> None:
    found = {t.key: (t.a, t.b) for t in comparison(a, b).traits if t.differs}
    assert {k: v for k, v in found.items() if k not in SIZES} == DIFFERENT[a, b]


@pytest.mark.parametrize("name", HAVE)
def test_single_facts(name: str) -> None:
    values = side(name).values
    assert {key: values.get(key, "none") for key in HAVE[name]} == HAVE[name]


def test_factors_are_read_from_the_graph(tmp_path: Path) -> None:
    """Of Granite: embedding × 12, both branches × 0.22, scores × 2^-7, logits / 8."""
    fields = {
        "model_type": "granite", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.0078125, "logits_scaling": 8.0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    values = load_side(load_model_config(str(tmp_path)), load_library([])).values
    assert values["embedding.scale"] == "× 12"
    assert values["residual.scale"] == "attention × 0.22; MLP × 0.22"
    assert values["attention.scale"] == "0.0078125"
    assert values["logits.scale"] == "× 0.125"
    assert values["mlp.sizes"] == "64→96→64"
    assert values["attention.heads"] == "4 query, 2 key/value, 16 wide"


def test_scaled_embeddings_of_gemma_are_read_from_a_buffer() -> None:
    """The factor is sqrt(2304), kept in a buffer that the traced model has no value of."""
    assert side("gemma2").values["embedding.scale"] == "× 48"


def test_a_model_is_like_itself() -> None:
    found = comparison("llama", "llama")
    assert not any(t.differs for t in found.traits)
    assert (found.fields, found.disagreements) == ([], [])
    assert all(row.same and row.a == row.b for row in found.structure)
    assert not any(p.differs for p in found.points)


def test_the_other_way_round_says_the_same() -> None:
    one, other = comparison("llama", "gpt_neox"), comparison("gpt_neox", "llama")
    assert [(t.key, t.a, t.b) for t in one.traits] == [(t.key, t.b, t.a) for t in other.traits]
    assert [(f.name, f.in_a, f.a) for f in one.fields] == [
        (f.name, f.in_b, f.b) for f in other.fields
    ]


def test_the_checklist_names_what_handles_each_point() -> None:
    points = {p.number: p for p in comparison("llama", "gpt_neox").points}
    assert list(points) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [n for n, p in points.items() if p.differs] == [1, 2, 3, 4, 5, 7, 8]
    rules = {n: {h.name for h in p.handled if h.kind == "rule"} for n, p in points.items()}
    assert rules[1] == {"qkv_proj_packed", "o_proj"}
    assert rules[4] == {"ungated_mlp"}
    assert rules[5] == {"layer_norm"}
    assert (
        len(points[4].means) == len([k for k in DIFFERENT["llama", "gpt_neox"] if "mlp" in k]) + 1
    )
    assert "NF.mlp at 44 places" in {h.text for h in points[4].handled}
    assert points[6].means == ["both graphs do the same here"]


def test_wide_heads_and_caps_are_told_for_neuron() -> None:
    first = comparison("gemma3_text", "gemma2").points[0]
    texts = [h.text for h in first.handled if h.kind == "host"]
    assert any("heads of 256 exceed the 128" in t for t in texts)
    assert any("on Neuron this attention runs in torch" in t for t in texts)


def test_structure_stands_side_by_side() -> None:
    found = comparison("qwen2", "qwen3").structure
    only_b = [row.b for row in found if row.a is None]
    assert only_b == ["q_norm Qwen3RMSNorm", "k_norm Qwen3RMSNorm"]
    changed = [(row.a, row.b) for row in found if not row.same and row.a and row.b]
    assert changed == [
        (f"{n} 4096→4096 + bias", f"{n} 4096→4096") for n in ("q_proj", "k_proj", "v_proj")
    ]


def test_every_value_of_a_reading_has_its_place() -> None:
    for name in ("llama", "mixtral", "cohere2", "gpt_oss"):
        assert set(side(name).values) <= set(TRAITS)
