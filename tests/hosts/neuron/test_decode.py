"""Decode through `attention_decode`: where it is used, that it is right, and why it is not used elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from tests.hosts.neuron.checkpoints import MODEL, small, write
from tests.neuron.runner import generate

FITS = {"hidden_size": 128, "num_key_value_heads": 1}


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt_oss", "qwen2"])
def test_one_call_per_layer_and_step(model_type: str, tmp_path: Path) -> None:
    saved = write(tmp_path, small(model_type, **FITS))
    prompts = saved.prompts(6, 45, 31)
    made = generate(MODEL, tmp_path, prompts, 5, compile=False, semantics="kernel")
    assert made.tokens == [saved.greedy(p, 5) for p in prompts]
    calls = made.log.of("attention_decode")
    assert {c.verdict for c in calls} == {"kernel"}
    assert len(calls) % saved.config.num_hidden_layers == 0
    for function in ("qkv_proj", "o_proj"):  # in prefill only
        assert len(made.log.of(function)) == len(prompts) * saved.config.num_hidden_layers


def test_compiled_without_recompilation(tmp_path: Path) -> None:
    saved = write(tmp_path, small("llama", **FITS))
    prompts = saved.prompts(6, 45)
    made = generate(MODEL, tmp_path, prompts, 4, batch=2, buckets=(128, 256), max_logprobs=5)
    assert made.tokens == [saved.greedy(p, 4) for p in prompts]
    layers = saved.config.num_hidden_layers
    decode = [g for g in made.log.graphs if "decode" in g.step]
    assert decode
    for graph in decode:
        assert graph.functions["attention_decode"] == layers
        assert graph.functions["mlp"] == layers
        assert graph.functions["qkv_proj"] == graph.functions["o_proj"] == 0


def build(model_type: str, **changes: Any) -> Any:
    config = small(model_type, **changes)
    with torch.device("meta"):
        return NeuronTransformersForCausalLM.from_configs(config)


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("llama", {"hidden_size": 128, "num_key_value_heads": 2}, "2 key/value heads per rank"),
        ("llama", {"num_key_value_heads": 1}, "no multiple of 128"),
        ("glm4", FITS, "stands between projection and attention"),
        ("olmo2", FITS, "no RMS norm over a head"),
        ("gemma2", FITS, "soft-capped"),
    ],
)
def test_the_plan_says_why_not(model_type: str, changes: Any, reason: str) -> None:
    plan = build(model_type, **changes).host_plan
    (choice,) = [c for c in plan.choices if c.phase == "decode" and c.call == "attention_decode"]
    assert choice.runs.startswith("torch: ") and reason in choice.runs


def test_the_plan_says_kernel() -> None:
    plan = build("qwen3", **FITS).host_plan
    runs = {(c.phase, c.call): c.runs for c in plan.choices}
    assert runs["decode", "attention_decode"] == "kernel"
    assert runs["prefill", "flash_attention"] == "kernel"
