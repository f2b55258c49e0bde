"""A text part saved by itself is read by the class its checkpoint names, and by nothing that only looks like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, Emu3Config, Emu3ForCausalLM, Emu3TextConfig, MllamaForCausalLM
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

from neuron_autoport.errors import ModelError
from neuron_autoport.models.build import meta_model
from neuron_autoport.models.source import load_model_config
from neuron_autoport.models.unlisted import list_base, named_class
from neuron_autoport.port import base_path, port_model

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def text_config(*architectures: str) -> Emu3TextConfig:
    return Emu3TextConfig(**SMALL, architectures=list(architectures))


def test_a_text_part_saved_by_itself(tmp_path: Path) -> None:
    Emu3ForCausalLM(text_config()).save_pretrained(tmp_path)
    source = load_model_config(str(tmp_path))
    assert type(source.config) is Emu3TextConfig
    assert source.architecture == "Emu3ForCausalLM"
    model = meta_model(source)
    assert type(model) is Emu3ForCausalLM
    assert len(port_model(source, ()).plans) > 0
    assert list_base(model, base_path(model))
    with torch.device("meta"):
        assert type(AutoModel.from_config(source.config)) is type(model.model)


@pytest.mark.parametrize(
    "architectures",
    [
        (),
        ("NoSuchModel",),
        ("Emu3TextModel",),  # without a head
        ("Emu3ForConditionalGeneration",),  # of all parts
        ("LlamaForCausalLM",),  # of another configuration, though its modules would build
        ("PreTrainedModel",),
    ],
)
def test_nothing_else_is_taken_for_one(architectures: tuple[str, ...], tmp_path: Path) -> None:
    config = text_config(*architectures)
    assert named_class(config) is None
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is not a causal language model") as caught:
        load_model_config(str(tmp_path))
    assert caught.value.next_step


def test_the_whole_is_read_as_transformers_lists_it() -> None:
    """Its configuration is not the one of the class it is listed with."""
    config = Emu3Config(architectures=["Emu3ForCausalLM"])
    assert named_class(config) is None
    assert load_model_config("emu3").architecture == "Emu3ForCausalLM"


def test_a_base_model_under_another_prefix_is_not_listed() -> None:
    """Its tensors would not be found by the prefix that vLLM's backend and we look under."""
    config = MllamaTextConfig(**{**SMALL, "cross_attention_layers": []})
    config.architectures = ["MllamaForCausalLM"]
    with torch.device("meta"):
        model = MllamaForCausalLM(config)
    assert not list_base(model, base_path(model))
    assert not list_base(model, "")
    assert MllamaTextConfig not in AutoModel._model_mapping
