"""The double has exactly the contract's functions, arguments, defaults, modules and enums."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from tests.neuron.double import State, nn
from tests.neuron.double.contract import FUNCTIONS, TABLE, defaults
from tests.neuron.double.neuron_config import NeuronConfig, OnDeviceSamplingConfig

EMPTY = inspect.Parameter.empty

# How many parameters the contract's page numbers or lists: guards the copied table itself.
COUNTS = {
    "qkv_proj": 55,
    "o_proj": 6,
    "flash_attention": 18,
    "segmented_attention": 15,
    "attention_decode": 57,
    "gen_attention_decode_mask": 9,
    "mlp": 28,
    "swa_fused_attention": 20,
    "sample": 12,
    "moe_block_tkg": 37,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_in_order_with_defaults(double: State, name: str) -> None:
    row = FUNCTIONS[name]
    function = getattr(importlib.import_module(row["module"]), name)
    if name == "can_run_kernel":
        assert function("neuron") is False
        return
    parameters = inspect.signature(function).parameters
    assert list(parameters) == [parameter for parameter, _ in row["parameters"]]
    wanted = defaults(row["parameters"])
    assert {p: v.default for p, v in parameters.items() if v.default is not EMPTY} == wanted


def test_exports(double: State) -> None:
    """NF exports what the contract says, and nothing that is fork-only."""
    functional = importlib.import_module("vllm_neuron.functional")
    exported = {name for name, row in FUNCTIONS.items() if row["exported"]}
    assert exported <= set(dir(functional))
    for name in ("argmax", "topk", "lm_head", "vocab_parallel_logits", "sample_full_vocab"):
        assert not callable(getattr(functional, name, None))


def test_counts_of_the_contract_page() -> None:
    assert {name: len(FUNCTIONS[name]["parameters"]) for name in COUNTS} == COUNTS


def test_names_that_are_not_in_the_contract(double: State) -> None:
    functional: Any = importlib.import_module("vllm_neuron.functional")
    with pytest.raises(TypeError, match="unexpected keyword argument 'hiden'"):
        functional.mlp(hiden=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'weight'"):
        functional.o_proj(1)
    with pytest.raises(NotImplementedError, match="not in the written contract"):
        functional.permute_routed_tokens()
    with pytest.raises(NotImplementedError, match="no torch formula"):
        functional.moe_tkg(*[None] * 6)


@pytest.mark.parametrize("name", TABLE["enums"])
def test_enums(double: State, name: str) -> None:
    row = TABLE["enums"][name]
    enum = getattr(importlib.import_module(row["module"]), name)
    assert [member.name for member in enum] == row["members"]


LAYERS = [name for name, row in TABLE["nn"].items() if row["module"].startswith("vllm_neuron.nn")]


@pytest.mark.parametrize("name", LAYERS)
def test_layers(double: State, name: str) -> None:
    row = TABLE["nn"][name]
    layer = getattr(importlib.import_module(row["module"]), name)
    assert layer is getattr(nn, name)
    for part, function in (("init", layer.__init__), ("forward", layer.forward)):
        found = dict(list(inspect.signature(function).parameters.items())[1:])
        assert list(found) == [parameter for parameter, _ in row[part]]
        given = {p: v.default for p, v in found.items() if v.default is not EMPTY}
        assert given == defaults(row[part])


def test_the_configuration() -> None:
    """Unknown keys are dropped without a word; on-device sampling is on unless it is None."""
    config = NeuronConfig.from_dict({"no_such_field": 3, "max_logprobs": 2})
    assert config.max_logprobs == 2 and not hasattr(config, "no_such_field")
    assert config.on_device_sampling_config is not None
    assert config.on_device_sampling_config.max_top_k == 256
    assert (
        NeuronConfig.from_dict({"on_device_sampling_config": None}).on_device_sampling_config
        is None
    )
    with pytest.raises(ValueError, match="ep_degree"):
        NeuronConfig(ep_degree=0)
    with pytest.raises(TypeError, match="seed"):
        OnDeviceSamplingConfig(seed=1)


def test_the_tree_is_gone_after_a_test(double: State) -> None:
    """Inside: importable, and NF's own backend; outside it is what it was before."""
    from neuron_autoport import nf

    assert importlib.import_module("vllm_neuron.model.kv_cache").KVSpec(layers=[]).layers == []
    assert nf.backend() == "vllm_neuron"
