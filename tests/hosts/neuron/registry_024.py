"""Run by test_register_024 in a process of its own: our registration in the registry of vLLM 0.24.0.

python registry_024.py FOLDER      # with vLLM's Python files; prints one line of JSON
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any


def main(folder: str) -> None:
    sys.path.insert(0, folder)
    import vllm
    from torch import nn
    from vllm.model_executor.models.registry import ModelRegistry

    from neuron_autoport.export.serving import register_model
    from neuron_autoport.hosts.neuron.register import register

    class OtherForCausalLM(nn.Module):
        """A model of somebody else's."""

        is_text_generation_model = True

    ModelRegistry.register_model("OtherForCausalLM", OtherForCausalLM)
    before = dict(ModelRegistry.models)
    register(ModelRegistry)
    routed = ModelRegistry.resolve_model_cls
    register(ModelRegistry)
    register_model("NeuronPackageForCausalLM", "package.factory:NeuronPackageForCausalLM")

    def config(model_impl: str) -> Any:
        return SimpleNamespace(
            model_impl=model_impl, convert_type="none", runner_type="generate", model="m"
        )

    def resolved(model_impl: str, names: Any) -> list[str]:
        cls, name = ModelRegistry.resolve_model_cls(names, model_config=config(model_impl))
        return [cls.__name__, name]

    ours = config("neuron-transformers")
    info, name = ModelRegistry.inspect_model_cls(["LlamaForCausalLM"], model_config=ours)
    found = {
        "version": vllm.__version__,
        "added": sorted(set(ModelRegistry.models) - set(before)),
        "changed": [n for n, m in before.items() if ModelRegistry.models[n] is not m],
        "routed_once": ModelRegistry.resolve_model_cls is routed
        or ModelRegistry.resolve_model_cls == routed,
        "inspected": [info.architecture, name, info.is_text_generation_model],
        "ours": resolved("neuron-transformers", "LlamaForCausalLM"),
        "others": [resolved(impl, ["OtherForCausalLM"]) for impl in ("auto", "vllm", "unknown")],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
