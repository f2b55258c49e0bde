"""The built-in rules on small models of many architectures: all is proved, nothing is dropped."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.pipeline import proved_port
from neuron_autoport.port import BATCH, LONG_TOKENS, TOKENS, port_model
from neuron_autoport.prove.own_size import prove_at_own_size
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.attention import TRACE_ATTENTION
from tests.helpers import small_config

# Sites of two layers: counted by hand from transformers' modeling files.
USUAL = {
    "qkv_proj": 2,
    "o_proj": 2,
    "gated_mlp": 2,
    "rms_norm": 5,
    "add_rms_norm": 2,
    "rope_pair": 2,
}
EXPECTED: dict[str, dict[str, int]] = {
    "llama": USUAL,
    "qwen2": USUAL,
    # With norms on the heads of q and k, which are done with the rotation.
    "qwen3": {k: n for k, n in USUAL.items() if k != "rope_pair"}
    | {"rms_norm": 9, "qk_norm_rope": 2},
    "mistral": USUAL,
    "gemma3_text": {
        "qkv_proj": 2,
        "o_proj": 2,
        "gated_mlp": 2,
        "rms_norm_zero_centered": 13,
        "add_rms_norm": 2,
        "qk_norm_rope_heads_first": 2,
    },
    "granite": USUAL,
    "phi3": {
        "qkv_proj_packed": 2,
        "o_proj": 2,
        "gated_mlp_packed": 2,
        "rms_norm": 5,
        "add_rms_norm": 2,
        "rope_partial_pair": 2,
    },
    "stablelm": {
        "qkv_proj": 2,
        "o_proj": 2,
        "gated_mlp": 2,
        "layer_norm": 5,
        "rope_partial_pair": 2,
    },
    "opt": {"qkv_proj": 2, "o_proj": 2, "layer_norm": 5},  # its MLP has ReLU
    "gpt2": {"qkv_proj_packed": 2, "o_proj": 2, "ungated_mlp": 2, "layer_norm": 5},
    "olmo2": {
        "qkv_proj": 2,
        "o_proj": 2,
        "gated_mlp": 2,
        "rms_norm_fp32_weight": 9,
        "rope_fp32_pair": 2,
    },
}


@pytest.mark.parametrize("model_type", EXPECTED)
def test_nothing_is_dropped(model_type: str) -> None:
    proved = proved_port(small_config(model_type), load_rules(), use_cache=False)
    assert proved.proof.dropped == () and proved.port.without == frozenset()
    found = Counter(site.rule.name for _, site in proved.port.sites())
    assert found == EXPECTED[model_type]
    assert proved.proof.logits is not None and proved.proof.logits.passed
    assert proved.proof.modules and all(m.passed for m in proved.proof.modules)
    # Every rewritten class has its figures.
    shown = {m.class_name for m in proved.proof.modules}
    assert {c.__name__.split("_")[0] for c in proved.generated.classes.values()} <= shown


def _needs_an_engine(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    raise AttributeError("this attention runs inside an engine only")


def test_an_engines_attention_does_not_keep_the_small_model_from_its_proof() -> None:
    """As in vLLM, whose configuration names its own attention function."""
    ALL_ATTENTION_FUNCTIONS.register("neuron_autoport_test_engine", _needs_an_engine)
    config = small_config("llama")
    config._attn_implementation = "neuron_autoport_test_engine"
    proof = proved_port(config, load_rules(), use_cache=False).proof
    assert proof.dropped == () and proof.logits is not None and proof.logits.passed
    assert proof.how.startswith("on a small model")


def test_a_layer_at_its_own_size_computes_its_attention() -> None:
    port = port_model(small_config("llama"), load_rules())
    made = generate(port.plans, "a test")
    proof = prove_at_own_size(port.model, "model.layers.0", port.where["model.layers.0"], made)
    assert proof.passed, proof.figures()


def test_the_leaf_of_a_trace_is_no_attention() -> None:
    value = torch.ones(1, 2, 3, 4)
    with pytest.raises(RuntimeError, match="stands for attention in a trace only"):
        ALL_ATTENTION_FUNCTIONS[TRACE_ATTENTION](nn.Module(), value, value, value, None)


def test_code_that_only_a_long_prompt_runs_is_traced_and_proved() -> None:
    """A compressor of whole windows of 128 tokens: its norm does not run for the usual seven."""
    config = tiny_config(CONFIG_MAPPING["deepseek_v4"]())
    config.compress_rates = CONFIG_MAPPING["deepseek_v4"]().compress_rates
    proved = proved_port(config, load_rules(), use_cache=False)
    assert proved.port.tokens == BATCH * LONG_TOKENS
    norms = [p for p, s in proved.port.sites() if p.endswith("compressor.kv_norm")]
    assert norms and proved.proof.dropped == ()
    shown = {m.class_name for m in proved.proof.modules if m.passed}
    assert "DeepseekV4HCACompressor" in shown
    assert port_model(small_config("llama"), load_rules()).tokens == BATCH * TOKENS
