"""What cannot be served is refused when the model is built, by name and with the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neuron_autoport.hosts.neuron import positions
from neuron_autoport.hosts.neuron.errors import NeuronHostError
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from tests.hosts.neuron.checkpoints import small


def refusal(config: Any, neuron_config: Any = None) -> str:
    with torch.device("meta"), pytest.raises(NeuronHostError) as error:
        NeuronTransformersForCausalLM.from_configs(config, neuron_config)
    return str(error.value)


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("mamba2", ["Mamba2Mixer", "carries information from token to token"]),
        ("bamba", ["BambaMixer"]),
        ("qwen3_next", ["Qwen3NextGatedDeltaNet"]),
        ("minimax", ["MiniMaxLightningAttention"]),
        ("bloom", ["BloomAttention"]),  # attends, but not through the interface
        ("deepseek_v3", ["DeepseekV3Attention", "latent attention"]),
        ("llama4_text", ["Llama4TextAttention", "mask"]),  # attends in chunks
        ("diffllama", ["DiffLlamaAttention", "attends twice"]),
    ],
)
def test_models_that_need_more_than_keys_and_values(model_type: str, words: list[str]) -> None:
    text = refusal(small(model_type))
    for word in words:
        assert word in text
    assert "autoport inspect" in text


def test_quantized_checkpoints() -> None:
    config = small("llama")
    config.quantization_config = {"quant_method": "fp8"}
    assert "quantized" in refusal(config)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attention_dp_size", 2),
        ("quantization", "mxfp8"),
        ("fp8_packed_kv", True),
        ("ep_degree", 2),
    ],
)
def test_options_that_are_not_served(option: str, value: Any) -> None:
    assert option in refusal(small("llama"), SimpleNamespace(**{option: value}))


def test_frequencies_that_change_with_the_length() -> None:
    config = small("phi3", max_position_embeddings=256, original_max_position_embeddings=64)
    half = config.hidden_size // config.num_attention_heads // 2
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * half,
        "long_factor": [2.0] * half,
        "original_max_position_embeddings": 64,
    }
    text = refusal(config)
    assert "beyond 64 positions" in text and "--max-model-len 64" in text


@pytest.mark.parametrize("model_type", ["opt", "biogpt", "gpt2"])
def test_positions_that_a_table_does_not_hold(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the table is, and one longer; rows that the model skips at its start are no positions."""
    config = small(model_type)
    held = int(config.max_position_embeddings)
    for longest in (held, held + 1):
        monkeypatch.setattr(positions, "longest_sequence", lambda longest=longest: longest)
        if longest == held:
            with torch.device("meta"):
                NeuronTransformersForCausalLM.from_configs(config)
        else:
            text = refusal(config)
            assert f"holds {held} positions" in text and f"--max-model-len {held}" in text
