"""What vLLM's backend is given to build by, and what is refused because it cannot be."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.mllama.configuration_mllama import MllamaTextConfig
from vllm.model_executor.models.utils import WeightsMapper

from neuron_autoport.hosts.vllm.alone import Alone
from neuron_autoport.hosts.vllm.building import fit_backend, keep_own_names
from neuron_autoport.hosts.vllm.checkpoint import Checkpoint
from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.models.kinds import architecture_of
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import port_model

ALONE = Alone("why", several=True, again=True)


def read(config: Any, alone: Alone | None) -> Any:
    return SimpleNamespace(proved=SimpleNamespace(port=port_model(config, ())), alone=alone)


def test_sizes_are_counted_where_the_configuration_has_none() -> None:
    config = tiny_config(CONFIG_MAPPING["blt"]())
    fit_backend(config, read(config, ALONE), "folder")
    parts = (
        config.encoder_config,
        config.decoder_config,
        config.global_config,
        config.patcher_config,
    )
    assert config.hidden_size == config.decoder_config.hidden_size
    assert config.num_hidden_layers == max(part.num_hidden_layers for part in parts)


def test_sizes_of_a_configuration_stay() -> None:
    config = tiny_config(CONFIG_MAPPING["llama"]())
    before = config.to_dict()
    fit_backend(config, read(config, None), "folder")
    assert config.to_dict() == before


def test_without_sizes_no_cache_of_vllm_is_planned() -> None:
    config = tiny_config(CONFIG_MAPPING["blt"]())
    with pytest.raises(HostError, match="AP412: `blt` has no `num_hidden_layers`"):
        fit_backend(config, read(config, None), "folder")
    assert not hasattr(config, "num_hidden_layers")


def test_a_base_model_that_cannot_be_listed_is_refused() -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    config = MllamaTextConfig(**sizes, cross_attention_layers=[])
    config.architectures = ["MllamaForCausalLM"]
    architecture_of(config, "folder", False)
    with pytest.raises(HostError, match="AP412: AutoModel has no class") as caught:
        fit_backend(config, read(config, None), "folder")
    assert caught.value.next_step
    assert MllamaTextConfig not in AutoModel._model_mapping


class Base(nn.Module):
    def __init__(self, head: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        if head:
            self.part = nn.ModuleDict({"lm_head": nn.Linear(4, 4)})


@pytest.mark.parametrize(
    ("head", "kept"), [(True, {"ignored", "prefix"}), (False, {"ignored", "prefix", "nested"})]
)
def test_a_part_with_a_head_of_its_own_keeps_it(head: bool, kept: set[str]) -> None:
    """The renamings of vLLM 0.32: a nested `lm_head` is the model's, unless the base model has one there."""
    patterns = {
        "ignored": (re.compile(r"norm"), None),
        "prefix": (re.compile(r"^(?!model\.)((norm|part).*)"), r"model.\1"),
        "nested": (re.compile(r"^model\.(.+\.)*(lm_head.+)"), r"\2"),
    }
    mapper = SimpleNamespace(orig_to_new_regex=dict(patterns.values()), orig_to_new_renaming=[])
    with torch.device("meta"):
        model: Any = SimpleNamespace(model=Base(head), hf_to_vllm_mapper=mapper)
    unasked: Any = None  # there is nothing to rename
    keep_own_names(model, unasked)
    assert mapper.orig_to_new_regex == dict(patterns[name] for name in kept)


# Names of a checkpoint, as its authors have them and as transformers saves them -> the model's, by hand.
NAMES = {
    "model.norm.weight": "model.norm.weight",  # a renaming of `.norm.` to `.kv_norm.` fits it
    "norm.weight": "norm.weight",
    "model.layers.1.attn.norm.weight": "model.layers.1.self_attn.kv_norm.weight",
    "layers.1.attn.norm.weight": "layers.1.self_attn.kv_norm.weight",
    "layers.1.ffn_norm.weight": "layers.1.post_attention_layernorm.weight",
    "model.layers.1.self_attn.kv_norm.weight": "model.layers.1.self_attn.kv_norm.weight",
    "layers.0.ffn.gate.tid2eid": "layers.0.mlp.gate.tid2eid",
    "head.weight": "lm_head.weight",
    "layers.0.ffn.experts.3.w1.weight": "layers.0.mlp.experts.3.w1.weight",  # a part; not ours to name
    "no.norm.such": "no.kv_norm.such",
}


def test_a_tensor_that_has_its_name_is_not_renamed() -> None:
    config = tiny_config(CONFIG_MAPPING["deepseek_v4"]())
    with torch.device("meta"):
        base: Any = AutoModel.from_config(config)
    renamings = [m for m in get_model_conversion_mapping(base) if isinstance(m, WeightRenaming)]
    mapper = WeightsMapper(orig_to_new_renaming=renamings)
    assert mapper.map_name("model.norm.weight") == "model.kv_norm.weight"  # vLLM's way
    model = SimpleNamespace(model=base, hf_to_vllm_mapper=mapper)
    keep_own_names(model, Checkpoint(base, "folder"))
    assert {name: mapper.map_name(name) for name in NAMES} == NAMES
