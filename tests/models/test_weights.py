"""Adversarial weights: deterministic, never degenerate, finite; they show what fresh ones hide."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Olmo2Config,
    PretrainedConfig,
    PreTrainedModel,
    StableLmConfig,
)

from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.weights import adversarial_

COMMON = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "gemma3_text": Gemma3TextConfig(**COMMON, head_dim=16, sliding_window=4),
    "olmo2": Olmo2Config(**COMMON),
    "mixtral": MixtralConfig(**COMMON, num_local_experts=4),
    "gpt2": GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "stablelm": StableLmConfig(**COMMON),
}
IDS = torch.tensor([[5, 17, 3, 88, 41, 41, 9, 60, 72, 12, 33, 7]])


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(input_ids=IDS, use_cache=False).logits.float()
    return out


@pytest.mark.parametrize("name", CONFIGS)
def test_same_seed_same_values(name: str) -> None:
    first = real_model(CONFIGS[name], seed=3).state_dict()
    torch.manual_seed(12345)
    again = real_model(CONFIGS[name], seed=3).state_dict()
    assert all(torch.equal(first[k], again[k]) for k in first)
    other = real_model(CONFIGS[name], seed=4).state_dict()
    assert all(not torch.equal(first[k], other[k]) for k in first)


def test_dtypes_share_their_values() -> None:
    wide = real_model(CONFIGS["llama"], dtype=torch.float32).state_dict()
    narrow = real_model(CONFIGS["llama"], dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(wide[k].bfloat16(), narrow[k]) for k in wide)


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_constant_and_the_run_is_finite(name: str) -> None:
    model = real_model(CONFIGS[name])
    for key, tensor in model.state_dict().items():
        assert tensor.unique().numel() > tensor.numel() // 2, key
    out = logits(model)
    assert torch.isfinite(out).all()
    assert 0.05 < out.std() < 15.0 and out.abs().max() < 100.0


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_stays_near_float32(name: str) -> None:
    exact = logits(real_model(CONFIGS[name], dtype=torch.float32))
    rounded = logits(real_model(CONFIGS[name], dtype=torch.bfloat16))
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.05


def spread(tensor: torch.Tensor) -> tuple[float, float]:
    return float(tensor.mean()), float(tensor.std())


def test_values_by_kind() -> None:
    wide = {**COMMON, "hidden_size": 512, "intermediate_size": 384}
    llama = real_model(LlamaConfig(**wide, attention_bias=True)).state_dict()
    mean, std = spread(torch.stack([t for k, t in llama.items() if "layernorm" in k]))
    assert abs(mean - 1.0) < 0.05 and abs(std - 0.5) < 0.05
    assert float(llama["model.norm.weight"].min()) < 0.0
    mean, std = spread(llama["model.layers.0.self_attn.q_proj.bias"])
    assert abs(mean) < 0.1 and abs(std - 0.5) < 0.05
    _, std = spread(llama["model.layers.0.mlp.down_proj.weight"])
    assert abs(std * math.sqrt(384) - 1.0) < 0.02
    gemma = real_model(Gemma3TextConfig(**wide, head_dim=16)).state_dict()
    mean, std = spread(torch.cat([t for k, t in gemma.items() if t.ndim == 1 and t.numel() == 512]))
    assert abs(mean) < 0.05 and abs(std - 0.3) < 0.03


def test_one_embedding_channel_in_eight_is_large() -> None:
    for name in ("llama", "gemma3_text"):
        scale = real_model(CONFIGS[name]).get_input_embeddings().weight.std(dim=0)
        usual = scale.median()
        assert int((scale > 20 * usual).sum()) == 64 // 8
        assert 30 < scale.max() / usual < 55


def test_transposed_weights_use_the_right_fan_in() -> None:
    model = real_model(GPT2Config(vocab_size=96, n_embd=256, n_layer=1, n_head=4, n_positions=64))
    _, std = spread(model.state_dict()["transformer.h.0.mlp.c_fc.weight"])  # [256 in, 1024 out]
    assert abs(std * math.sqrt(256) - 1.0) < 0.02


def test_tied_weights_stay_tied() -> None:
    model = real_model(LlamaConfig(**COMMON, tie_word_embeddings=True))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_memory_nothing_wrote_to_does_not_survive() -> None:
    class Unwritten(nn.Module):
        def __init__(self, fill: float) -> None:
            super().__init__()
            self.sinks = nn.Parameter(torch.full((16,), fill))
            self.correction: torch.Tensor
            self.register_buffer("correction", torch.full((16,), fill))
            self.inv_freq: torch.Tensor
            self.register_buffer("inv_freq", torch.linspace(0.1, 1.0, 8), persistent=False)

    first, second = Unwritten(float("nan")), Unwritten(float("inf"))
    adversarial_(first)
    adversarial_(second)
    assert torch.isfinite(first.sinks).all() and torch.equal(first.sinks, second.sinks)
    assert torch.isfinite(first.correction).all() and first.correction.unique().numel() == 16
    assert torch.equal(first.inv_freq, torch.linspace(0.1, 1.0, 8))


def test_structured_parameters_keep_their_meaning() -> None:
    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.A_log = nn.Parameter(torch.log(torch.arange(1.0, 17.0)).repeat(8, 1))

    decay = Decay()
    before = decay.A_log.detach().clone()
    adversarial_(decay)
    assert 0.1 < float((decay.A_log.detach() - before).std()) < 0.5


def test_meta_is_refused() -> None:
    with pytest.raises(ValueError, match="meta"):
        adversarial_(meta_model(CONFIGS["llama"]))


def drop_norm_weight(model: PreTrainedModel) -> None:
    model.model.layers[0].input_layernorm.weight.fill_(1.0)


def drop_bias(model: PreTrainedModel) -> None:
    model.model.layers[0].self_attn.q_proj.bias.zero_()


def drop_zero_centre(model: PreTrainedModel) -> None:
    """What `x * (1 + w)` computed as if only the one were there."""
    model.model.layers[0].input_layernorm.weight.zero_()


def swap_gate_and_up(model: PreTrainedModel) -> None:
    mlp = model.model.layers[0].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


@pytest.mark.parametrize(
    ("name", "fault", "hidden_by_fresh_weights"),
    [
        ("llama", drop_norm_weight, True),
        ("llama", drop_bias, True),
        ("gemma3_text", drop_zero_centre, True),
        ("llama", swap_gate_and_up, False),
    ],
)
def test_faults_show(
    name: str, fault: Callable[[PreTrainedModel], None], hidden_by_fresh_weights: bool
) -> None:
    fresh = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    adversarial = real_model(CONFIGS[name])
    for model, hidden in ((fresh, hidden_by_fresh_weights), (adversarial, False)):
        right = logits(model)
        with torch.no_grad():
            fault(model)
        difference = float((logits(model) - right).norm() / right.norm())
        assert difference == 0.0 if hidden else difference > 1e-4
    assert difference > 1e-2
