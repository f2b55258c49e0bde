"""Columns that the rewrite has in another order: what is saved for the checkpoint's order is refused, never misread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.fusers import Layer, _check_reordered

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
