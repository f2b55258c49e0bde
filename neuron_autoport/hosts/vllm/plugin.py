"""Entry point `vllm.general_plugins`: vLLM calls `register` in every process, before models resolve."""

from __future__ import annotations


def register() -> None:
    """Register our model classes and make `--model-impl neuron-transformers` resolve to them.

    Idempotent. Other values of the flag, and vLLM's own architectures, are untouched. Where vLLM's
    platform is the Neuron plugin's, the class is that of the Neuron host.
    """
    from neuron_autoport.hosts.neuron import register as neuron

    if neuron.active():
        neuron.register()
        return
    from neuron_autoport.hosts.vllm import compat, configuration

    compat.register_models()
    compat.route_model_impl()
    configuration.route_configurations()
