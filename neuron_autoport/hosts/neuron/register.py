"""Registration on the Neuron platform: our architecture name, and the way to it by `--model-impl`.

Called by the entry point `vllm.general_plugins` in the front end, the engine core, each worker and the
process that inspects model classes. The plugin's own architectures are not touched.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

from neuron_autoport.hosts.neuron import ARCHITECTURE
from neuron_autoport.hosts.vllm import MODEL_IMPL

TARGET = "neuron_autoport.hosts.neuron.model:NeuronTransformersForCausalLM"
_ROUTED = "_neuron_autoport_neuron"


def active() -> bool:
    """Is vLLM's platform the Neuron plugin's?"""
    if importlib.util.find_spec("vllm_neuron") is None:
        return False
    from vllm.platforms import current_platform

    return any(
        c.__module__.partition(".")[0] == "vllm_neuron" for c in type(current_platform).__mro__
    )


def register(registry: Any = None) -> None:
    """Make our class known under its name and reached by `--model-impl neuron-transformers`.

    Idempotent; for every other value of the flag the registry does what it did.

    Args:
        registry: vLLM's model registry; None for the installed one.
    """
    if registry is None:
        from vllm import ModelRegistry

        registry = ModelRegistry
    if ARCHITECTURE not in registry.get_supported_archs():
        registry.register_model(ARCHITECTURE, TARGET)
    if getattr(registry, _ROUTED, False):
        return
    for name in ("inspect_model_cls", "resolve_model_cls"):
        setattr(registry, name, _routed(getattr(registry, name)))
    setattr(registry, _ROUTED, True)


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def route(architectures: Any, model_config: Any = None, **kwargs: Any) -> Any:
        if getattr(model_config, "model_impl", None) != MODEL_IMPL:
            return original(architectures, model_config=model_config, **kwargs)
        return original([ARCHITECTURE], model_config=model_config, **kwargs)

    return route
