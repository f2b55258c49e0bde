"""Layers that attend several times in one forward: a cache for each call, found in the graph of the model."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("vllm")

import torch
from torch import nn
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm.model_executor.models.utils import extract_layer_index

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.fusers import plan_layers
from neuron_autoport.hosts.vllm.loading import Loading
from neuron_autoport.hosts.vllm.turns import (
    Turns,
    attention_calls,
    check_all_taken,
    check_stages,
    give_turns,
    layer_of,
    start,
    turns_of,
)
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import Port, port_model
from neuron_autoport.rules.library import load_rules


@cache
def ported(model_type: str) -> Port:
    return port_model(tiny_config(CONFIG_MAPPING[model_type]()), load_rules())


def test_two_calls_of_one_layer() -> None:
    found = attention_calls(ported("diffllama"))["model.layers.0.self_attn"]
    assert (len(found.asked), found.passes, found.names()) == (2, 1, ("attn", "attn_1"))


def test_one_call_of_each_pass() -> None:
    """The paper's recurrence: in each of H slow cycles L fast ones, and one slow pass."""
    port = ported("hrm_text")
    slow, fast = port.model.config.H_cycles, port.model.config.L_cycles
    found = attention_calls(port)
    assert found["model.L_module.layers.0.self_attn"].passes == slow * fast
    assert found["model.H_module.layers.0.self_attn"].passes == slow
    assert all(len(calls.asked) == calls.passes for calls in found.values())


def test_vllm_reads_the_number_of_the_layer_from_every_name() -> None:
    names = attention_calls(ported("hrm_text"))["model.L_module.layers.1.self_attn"].names()
    assert len(set(names)) == len(names)
    assert {extract_layer_index(f"model.L_module.layers.1.self_attn.{n}") for n in names} == {1}


def test_a_layer_that_attends_once_takes_no_turns() -> None:
    module = nn.Module()
    give_turns(module, "here", attention_calls(ported("llama"))["model.layers.0.self_attn"])
    module.attn = nn.Identity()
    assert turns_of(module) == []
    assert layer_of(module) is layer_of(module) is module.attn


def test_each_call_takes_the_layer_of_its_turn() -> None:
    module = nn.Module()
    give_turns(module, "here", attention_calls(ported("diffllama"))["model.layers.0.self_attn"])
    module.attn, module.attn_1 = nn.Identity(), nn.Identity()
    turns = turns_of(module)
    for _ in range(2):
        start(turns)
        assert [layer_of(module), layer_of(module)] == [module.attn, module.attn_1]
        check_all_taken(turns)
    with pytest.raises(ValueError, match="here attends more than the 2 times"):
        layer_of(module)


def test_a_layer_that_attends_less_often_is_an_error() -> None:
    turns = Turns("here", ("attn", "attn_1"))
    check_all_taken([turns])  # compiled: the layers are in the code
    turns.take()
    with pytest.raises(ValueError, match="here attended 1 times, not 2"):
        check_all_taken([turns])


def test_passes_are_not_shared_by_stages() -> None:
    check_stages(attention_calls(ported("hrm_text")), 1, "MODEL")
    check_stages(attention_calls(ported("diffllama")), 2, "MODEL")
    with pytest.raises(HostError, match=r"AP501: model\.L_module.* runs 6 times in one pass"):
        check_stages(attention_calls(ported("hrm_text")), 2, "MODEL")


def test_a_layer_on_every_rank_numbers_its_parts() -> None:
    """vLLM's layer of several outputs knows its parts by number, that of heads by letter."""
    plan = ported("llama").where["model.layers.0.self_attn"]
    by_head, whole = (plan_layers(plan, lambda name: False, whole=w)[0] for w in (False, True))
    assert by_head.sources == (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"))
    assert (whole.kind, whole.sources) == ("stacked", (("q_proj", 0), ("k_proj", 1), ("v_proj", 2)))


def test_a_packed_tensor_is_split_into_the_parts_that_the_model_has() -> None:
    config = tiny_config(CONFIG_MAPPING["hrm_text"]())
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    packed = torch.arange(24.0).reshape(8, 3)
    place = "model.L_module.layers.0"
    given = [(f"{place}.attn.gqkv_proj.weight", packed), (f"{place}.other.weight", packed)]
    found = dict(Loading(model)(given))
    parts = [f"{place}.self_attn.{n}_proj.weight" for n in ("gate", "q", "k", "v")]
    assert list(found) == [*parts, f"{place}.other.weight"]
    assert [found[n].tolist() for n in parts] == [packed[i : i + 2].tolist() for i in (0, 2, 4, 6)]
