"""Models on meta and small real models: devices, dtypes, ties, and nothing left behind.

Dtypes are compared with what transformers' own `from_pretrained` gives for the saved model.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    PretrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.errors import ModelError
from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.source import load_model_config


def tiny_llama(**kwargs: object) -> LlamaConfig:
    sizes = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return LlamaConfig(**{**sizes, **kwargs})


def tiny_deepseek() -> DeepseekV3Config:
    return DeepseekV3Config(
        vocab_size=96, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=8,
        n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        max_position_embeddings=64, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip


def test_everything_is_on_meta_in_eval() -> None:
    model = meta_model(load_model_config("llama"))
    tensors = [*model.parameters(), *model.buffers()]
    assert tensors and all(t.is_meta for t in tensors)
    assert not any(m.training for m in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_parameter_count_of_a_known_model() -> None:
    # Llama 2 7B, as published: 6,738,415,616 parameters; it is LlamaConfig's default.
    assert sum(p.numel() for p in meta_model(LlamaConfig()).parameters()) == 6_738_415_616


def test_huge_models_need_no_memory() -> None:
    config = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=100,
        num_attention_heads=64, num_key_value_heads=8,
    )  # fmt: skip
    assert all(p.is_meta for p in meta_model(config).parameters())
    experts = meta_model(load_model_config("deepseek_v3"))
    assert sum(p.numel() for p in experts.parameters()) > 600e9


def test_composite_configuration_gives_its_text_model() -> None:
    model = meta_model(load_model_config("llama4"))
    assert type(model).__name__ == "Llama4ForCausalLM"


def test_ties_hold_on_meta() -> None:
    model = meta_model(tiny_llama(tie_word_embeddings=True))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    untied = meta_model(tiny_llama(tie_word_embeddings=False))
    assert untied.get_output_embeddings().weight is not untied.get_input_embeddings().weight


@pytest.mark.parametrize("build", [meta_model, real_model])
def test_no_state_is_left_behind(build: object) -> None:
    config = tiny_llama()
    before = copy.deepcopy(config.to_dict())
    attention = config._attn_implementation
    torch.manual_seed(7)
    random_state = torch.get_rng_state()
    init = nn.init.normal_
    assert callable(build)
    build(config, dtype=torch.float16, attn_implementation="eager")
    assert config.to_dict() == before and config._attn_implementation == attention
    assert torch.get_default_dtype() == torch.float32 and nn.init.normal_ is init
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.empty(1).device.type == "cpu"
    assert not torch.are_deterministic_algorithms_enabled()


def test_attention_implementation() -> None:
    assert (
        meta_model(tiny_llama(), attn_implementation="eager").config._attn_implementation == "eager"
    )


@pytest.mark.parametrize(
    "config",
    [
        tiny_llama(),
        tiny_deepseek(),
        Gemma3TextConfig(
            vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        ),
    ],
    ids=lambda c: c.model_type,
)  # fmt: skip
def test_dtypes_and_values_are_those_of_a_loaded_checkpoint(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    built = real_model(config, dtype=torch.bfloat16)
    built.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    expected = loaded.state_dict()
    found = built.state_dict()
    assert {k: t.dtype for k, t in found.items()} == {k: t.dtype for k, t in expected.items()}
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    meta = meta_model(config, dtype=torch.bfloat16).state_dict()
    assert {k: t.dtype for k, t in meta.items()} == {k: t.dtype for k, t in expected.items()}


def test_float32_parts_of_a_bfloat16_model() -> None:
    state = real_model(tiny_deepseek(), dtype=torch.bfloat16).state_dict()
    wide = {name.rpartition(".")[2] for name, t in state.items() if t.dtype == torch.float32}
    assert wide == {"e_score_correction_bias"}


@pytest.mark.parametrize(
    ("model_type", "field"),
    [
        ("dbrx", "rope_theta"),
        ("nemotron", "num_key_value_heads"),
        ("lfm2_moe", "layer_types"),
        ("ministral", "head_dim"),
        ("cohere_compass_text", "rope_parameters"),
        ("qwen4_exp_text", "indexer_n_heads"),
    ],
)
def test_default_that_does_not_build_names_the_field(model_type: str, field: str) -> None:
    with pytest.raises(ModelError) as caught:
        meta_model(load_model_config(model_type))
    assert f"`{field}`" in str(caught.value.where)
    assert "config.json" in str(caught.value.next_step)


def test_failed_build_restores_the_default_dtype() -> None:
    with pytest.raises(ModelError):
        meta_model(CONFIG_MAPPING["nemotron"](), dtype=torch.bfloat16)
    assert torch.get_default_dtype() == torch.float32
