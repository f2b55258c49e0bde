"""Build and load a model class as the plugin's runner does, and check what it left behind.

Checked: the front end's attributes, construction on meta, nothing left on meta after the weights
are loaded, no large tensor outside `parameters()` and `buffers()` (the memory budget counts those
only), and that vLLM's configuration is out of reach once loading is over.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from tests.neuron.double import ContractError, parallel
from tests.neuron.double.neuron_config import NeuronConfig
from tests.neuron.engine.options import Options

UNREGISTERED_LIMIT = 4096


def resolve(model_class: Any) -> type[nn.Module]:
    """The class, given itself or as "module:Class".

    Raises:
        ContractError: the front end would not take it.
    """
    if isinstance(model_class, str):
        module, _, name = model_class.partition(":")
        model_class = getattr(importlib.import_module(module), name)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise ContractError(f"{model_class!r} is no subclass of torch.nn.Module: vLLM rejects it")
    if getattr(model_class, "is_text_generation_model", None) is not True:
        raise ContractError("is_text_generation_model = True is missing on the class")
    for name in ("embed_input_ids", "compute_logits", "from_configs"):
        if not callable(getattr(model_class, name, None)):
            raise ContractError(f"the class has no {name}")
    return model_class


def neuron_config(options: Options) -> NeuronConfig:
    """The neuron configuration as the runner hands it over."""
    given = dict(options.neuron_config)
    if not options.on_device_sampling:
        given["on_device_sampling_config"] = None
    given.setdefault("ep_degree", options.ep_degree)
    given["enable_structured_outputs"] = bool(options.mask)
    if options.chunk is not None:
        given["kv_segment_size_buckets"] = [options.chunk]
    made = NeuronConfig.from_dict(given)
    made.max_logprobs = options.max_logprobs
    return made


def _vllm_config(folder: str, hf_config: Any, options: Options, neuron: NeuronConfig) -> Any:
    """What a model may read of vLLM's configuration while it is built and loaded."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=folder,
            hf_config=hf_config,
            dtype=options.dtype,
            max_model_len=options.longest,
            architecture=(hf_config.architectures or [""])[0],
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=options.tp,
            data_parallel_size=1,
            enable_expert_parallel=options.expert_parallel,
        ),
        cache_config=SimpleNamespace(block_size=options.block_size, cache_dtype="auto"),
        additional_config={"neuron_config": neuron, **options.additional},
        speculative_config=None,
        quant_config=None,
    )


def _build(cls: Any, hf_config: Any, neuron: NeuronConfig) -> Any:
    """`from_configs`, by position; by keyword as soon as there is a vision configuration."""
    if not hasattr(hf_config, "vision_config"):
        return cls.from_configs(hf_config, neuron)
    vision = SimpleNamespace(tp_size=1, dp_size=1, mm_encoder_only=False)
    return cls.from_configs(
        hf_config=hf_config, text_neuron_config=neuron, vision_neuron_config=vision
    )


def load(model_class: Any, folder: str, options: Options) -> tuple[Any, Any]:
    """(the loaded model, its Hugging Face configuration).

    Raises:
        ContractError: the model breaks the life cycle's contract.
    """
    cls: Any = resolve(model_class)
    hf_config = AutoConfig.from_pretrained(folder)
    hf_config.dtype = options.dtype
    neuron = neuron_config(options)
    with parallel.vllm_config(_vllm_config(folder, hf_config, options, neuron)):
        with torch.device("meta"):
            model: Any = _build(cls, hf_config, neuron)
        if not isinstance(model, nn.Module):
            raise ContractError(f"from_configs gave {type(model).__name__}, not a module")
        for name, parameter in model.named_parameters():
            if parameter.device.type != "meta":
                raise ContractError(f"{name} was built on {parameter.device}, not on meta")
        load_weights: Any = model.load_weights
        load_weights(folder, torch.device("cpu"), None)
    check_loaded(model)
    return model.to("cpu"), hf_config


def check_loaded(model: nn.Module) -> None:
    """Nothing on meta, nothing large unregistered.

    Raises:
        ContractError: names the tensor.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    on_meta = [name for name, tensor in tensors if tensor.device.type == "meta"]
    if on_meta:
        raise ContractError(f"left on meta after load_weights: {on_meta}")
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.numel() > UNREGISTERED_LIMIT:
                raise ContractError(
                    f"{path}.{name}: {value.numel()} numbers in a plain attribute are missing "
                    "from the memory budget; register a buffer"
                )
