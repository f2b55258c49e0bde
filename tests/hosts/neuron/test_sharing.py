"""Tensor and expert parallel through the double's ranks: the same tokens, and what is kept whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_autoport.hosts.neuron.assembly import Assembly, Ported, Without
from neuron_autoport.hosts.neuron.build import host_source, port_of
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.selftest import Meeting
from neuron_autoport.port import port_model
from neuron_autoport.rules.sources import load_library
from tests.hosts.neuron.checkpoints import MODEL, small, write
from tests.neuron.runner import generate

KV_ONE = {"hidden_size": 128, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("model_type", "ranks", "changes", "options"),
    [
        ("qwen3", 2, KV_ONE, {}),  # one key/value head per rank: the fused decode
        ("qwen2", 4, KV_ONE, {}),  # fewer key/value heads than ranks: replicated
        ("gpt_oss", 2, {}, {}),  # sinks, biases and interleaved experts are cut
        ("mixtral", 2, {"vocab_size": 127}, {}),  # a vocabulary that does not divide
        ("qwen3_moe", 2, {}, {"expert_parallel": True, "ep_degree": 2}),
        ("phi3", 2, {}, {}),  # packed projections are cut part by part
        # windows, a tied and scaled embedding, one head held by both
        ("gemma3_text", 2, {"hidden_size": 128, "num_key_value_heads": 1}, {}),
        ("olmo2", 2, {}, {}),  # norms over all heads: attention stays whole on each rank
    ],
)
def test_tokens_equal_hugging_face(
    model_type: str, ranks: int, changes: Any, options: Any, tmp_path: Path
) -> None:
    saved = write(tmp_path, small(model_type, **changes))
    prompts = saved.prompts(6, 41)
    made = generate(
        MODEL, tmp_path, prompts, 4, tp=ranks, batch=2, compile=False, max_logprobs=3, **options
    )
    assert made.tokens == [saved.greedy(p, 4) for p in prompts]


def assemble(model_type: str, ranks: int, **changes: Any) -> Any:
    """A meta model as rank 0 of a group, without proofs."""
    source = host_source(small(model_type, **changes))
    ported: Ported = port_of(source, port_model(source, load_library()), read_layers(source))
    group = Ranks(Meeting(ranks).member(0)) if ranks > 1 else Ranks()
    return Assembly(ported, group, torch.float32, Without()).make(
        NeuronTransformersForCausalLM, None
    )


def test_shapes_of_one_rank() -> None:
    whole, part = assemble("qwen2", 1, **KV_ONE), assemble("qwen2", 4, **KV_ONE)
    sizes = {n: tuple(p.shape) for n, p in part.named_parameters()}
    full = {n: tuple(p.shape) for n, p in whole.named_parameters()}
    inside = "model.layers.0.self_attn"
    assert full[f"{inside}.qkv_weight"] == (128, (4 + 2 + 2) * 32)
    assert sizes[f"{inside}.qkv_weight"] == (128, (1 + 1 + 1) * 32)
    assert sizes[f"{inside}.qkv_bias"] == (1, 96)
    assert sizes[f"{inside}.o_proj_weight"] == (32, 128)
    assert sizes["lm_head.weight"][0] * 4 == full["lm_head.weight"][0]
    assert {layer.num_kv_heads for layer in part.get_kv_spec().layers} == {1}
    assert {layer.num_kv_heads for layer in whole.get_kv_spec().layers} == {2}


def test_heads_that_do_not_divide_stay_whole_and_the_plan_says_so() -> None:
    plan = assemble("llama", 3).host_plan
    assert "cannot be shared by 3 ranks" in plan.replicated["LlamaAttention"]
