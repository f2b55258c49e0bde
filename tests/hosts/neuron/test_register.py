"""Registration: reached by the flag, idempotent, nothing else changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from neuron_autoport.hosts.neuron import ARCHITECTURE
from neuron_autoport.hosts.neuron.register import TARGET, register


class Registry:
    """As much of vLLM's registry as both 0.24 and 0.32 have."""

    def __init__(self) -> None:
        self.models: dict[str, str] = {"LlamaForCausalLM": "own"}
        self.registered: list[str] = []

    def get_supported_archs(self) -> Any:
        return self.models.keys()

    def register_model(self, name: str, target: str) -> None:
        self.models[name] = target
        self.registered.append(name)

    def inspect_model_cls(self, architectures: Any, model_config: Any) -> tuple[str, Any]:
        return "inspected", architectures

    def resolve_model_cls(self, architectures: Any, model_config: Any) -> tuple[str, Any]:
        return "resolved", architectures


def test_only_the_flag_is_routed() -> None:
    registry: Any = Registry()
    register(registry)
    register(registry)
    assert registry.registered == [ARCHITECTURE]
    assert registry.models == {"LlamaForCausalLM": "own", ARCHITECTURE: TARGET}
    for value in ("auto", "vllm", "transformers", "other"):
        config = SimpleNamespace(model_impl=value)
        assert registry.inspect_model_cls(["X"], config) == ("inspected", ["X"])
        assert registry.resolve_model_cls("X", model_config=config) == ("resolved", "X")
    ours = SimpleNamespace(model_impl="neuron-transformers")
    assert registry.inspect_model_cls(["X"], ours) == ("inspected", [ARCHITECTURE])
    assert registry.resolve_model_cls("X", model_config=ours) == ("resolved", [ARCHITECTURE])


def test_vllm_takes_the_class_for_a_text_model() -> None:
    pytest.importorskip("vllm")
    from vllm.model_executor.models.interfaces_base import is_text_generation_model

    from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM

    assert is_text_generation_model(NeuronTransformersForCausalLM)
    assert TARGET.endswith(f":{NeuronTransformersForCausalLM.__name__}")
