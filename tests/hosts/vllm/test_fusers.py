"""What a rewrite says of itself in the log; and columns that it has in another order than the checkpoint.

What is saved for the checkpoint's order is refused, never misread.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

pytest.importorskip("vllm")

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.fusers import Layer, RewriteModule, _check_reordered
from neuron_autoport.port import port_model
from neuron_autoport.rules.library import load_rules

PACKED = Layer("query_key_value", "qkv", (), ())


def settings(**given: Any) -> Any:
    return SimpleNamespace(**{"quant_config": None, "lora_config": None, **given})


@pytest.mark.parametrize(
    ("given", "what"),
    [({"quant_config": object()}, "quantized"), ({"lora_config": object()}, "LoRA")],
)
def test_weights_saved_in_another_order_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(
        HostError, match=f"AP601: query_key_value: .* which {what} weights do not"
    ) as caught:
        _check_reordered(PACKED, "model.layers.0.attention", settings(**given))
    assert caught.value.next_step


def test_plain_weights_are_put_in_order() -> None:
    _check_reordered(PACKED, "model.layers.0.attention", settings())


def test_layers_of_a_list_say_the_same_and_others_their_name() -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    port = port_model(LlamaConfig(num_hidden_layers=2, **sizes), load_rules())
    found = {p.trace.module_class.__name__: p for p in port.plans}
    layer, mlp = (
        RewriteModule(plan=found[name], rewritten=found[name].trace.module_class, columnwise=bool)
        for name in ("LlamaDecoderLayer", "LlamaMLP")
    )
    said = "autoport: LlamaDecoderLayer: add_rms_norm → NK.add_rms_norm"
    assert layer.info("0") == layer.info("17") == said
    assert mlp.info("mlp") == "autoport: mlp (LlamaMLP): gated_mlp → NF.mlp"
