"""Checkpoint to parameters: lazy boxes, renamed and merged tensors, tied heads, missing tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from neuron_autoport.hosts.neuron.errors import NeuronHostError
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.weights.lazy import Join, Leaf, Stack, Swap, Whole, pick
from neuron_autoport.hosts.weights.names import ModelNames
from neuron_autoport.models.tiny import tiny_config
from tests.hosts.neuron.checkpoints import Checkpoint, small, write


class Counted:
    """A tensor with the interface of a safetensors slice, that counts what is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.read = tensor, 0

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        found = self.tensor[index]
        self.read += found.numel()
        return found


def test_a_cut_of_a_stacked_transposed_tensor_reads_only_its_part() -> None:
    tensors = [torch.randn(6, 10) for _ in range(4)]
    files = [Counted(t) for t in tensors]
    lazy = Swap(Stack([Leaf(f) for f in files], 0), 1, 2)
    want = torch.stack(tensors).transpose(1, 2)
    assert lazy.shape == (4, 10, 6)
    got = lazy.narrow(0, 1, 3).narrow(2, 2, 5).read()
    assert torch.equal(got, want[1:3, :, 2:5])
    assert [f.read for f in files] == [0, 30, 30, 0]


def test_join_and_pick() -> None:
    first, second = torch.randn(3, 4), torch.randn(3, 6)
    joined = Join([Whole(first), Whole(second)], 1)
    want = torch.cat([first, second], 1)
    assert torch.equal(joined.narrow(1, 2, 7).read(), want[:, 2:7])
    for columns in ([0, 1, 2, 3], [9, 0, 4, 5], [1, 3, 5, 7, 9], list(range(2, 10))):
        assert torch.equal(pick(joined, columns).read(), want[:, columns])
    with pytest.raises(ValueError, match="2:11 of dimension 1"):
        joined.narrow(1, 2, 11)


def load(saved: Checkpoint, folder: Path | None = None) -> Any:
    with torch.device("meta"):
        model = NeuronTransformersForCausalLM.from_configs(saved.config)
    model.load_weights(str(folder or saved.folder), "cpu", None)
    return model


def test_fused_weights_hold_the_checkpoint_values(tmp_path: Path) -> None:
    saved = write(tmp_path, small("qwen2"))
    state = saved.model.state_dict()
    got = dict(load(saved).named_parameters())
    inside = "model.layers.1.self_attn"
    parts = [state[f"{inside}.{n}_proj.weight"].t() for n in "qkv"]
    assert torch.equal(got[f"{inside}.qkv_weight"], torch.cat(parts, 1))
    biases = [state[f"{inside}.{n}_proj.bias"] for n in "qkv"]
    assert torch.equal(got[f"{inside}.qkv_bias"], torch.cat(biases)[None])
    down = "model.layers.1.mlp.down_proj"
    assert torch.equal(got[f"{down}_weight"], state[f"{down}.weight"].t())
    assert not any(p.requires_grad for p in got.values())


def test_experts_saved_one_by_one_are_merged(tmp_path: Path) -> None:
    """Hugging Face saves each expert on its own and merges them while it loads; here into NF's layout."""
    saved = write(tmp_path, small("qwen3_moe"))
    keys = {k for f in tmp_path.glob("*.safetensors") for k in load_file(f)}
    assert any(".experts.0.gate_proj.weight" in k for k in keys)
    got, state = dict(load(saved).named_parameters()), saved.model.state_dict()
    merged = [k for k in state if k.endswith("experts.gate_up_proj")]
    assert merged
    for key in merged:
        experts, inner = key.removesuffix(".gate_up_proj"), state[key].shape[1] // 2
        gate_up = got[f"{experts}.nf_gate_up"]
        assert torch.equal(gate_up[:, :, 0], state[key][:, :inner].transpose(1, 2))
        assert torch.equal(gate_up[:, :, 1], state[key][:, inner:].transpose(1, 2))
        down = state[f"{experts}.down_proj"]
        assert torch.equal(got[f"{experts}.nf_down"], down.transpose(1, 2))


@pytest.mark.parametrize("part", ["", "model"])
def test_a_tensor_that_has_its_name_is_not_renamed(part: str) -> None:
    """A renaming of `.norm.` to `.kv_norm.` fits the last norm, of the whole model or of its base alone."""
    config = tiny_config(CONFIG_MAPPING["deepseek_v4"]())
    with torch.device("meta"):
        whole: Any = AutoModelForCausalLM.from_config(config)
    keys = {
        "model.norm.weight": "norm.weight",
        "model.layers.1.attn.norm.weight": "layers.1.self_attn.kv_norm.weight",
    }
    prefix = "" if part else "model."
    origins = ModelNames.of(whole.get_submodule(part)).origins(keys)
    assert {origin.keys: name for name, origin in origins.items()} == {
        (key,): prefix + name for key, name in keys.items()
    }


def test_a_tied_head_is_a_parameter_of_its_own(tmp_path: Path) -> None:
    saved = write(tmp_path, small("gemma3_text"))
    assert saved.config.tie_word_embeddings
    model = load(saved)
    head, table = model.lm_head.weight, model.model.embed_tokens.weight
    assert torch.equal(head, table) and head.data_ptr() != table.data_ptr()


def test_shards_with_an_index(tmp_path: Path) -> None:
    saved = write(tmp_path / "one", small("llama"))
    tensors = load_file(tmp_path / "one" / "model.safetensors")
    folder = tmp_path / "two"
    folder.mkdir()
    names, where = sorted(tensors), {}
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({n: tensors[n] for n in part}, folder / f"part-{i}.safetensors")
        where.update(dict.fromkeys(part, f"part-{i}.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    one, two = load(saved).state_dict(), load(saved, folder).state_dict()
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_a_missing_tensor_is_named_with_its_neighbours(tmp_path: Path) -> None:
    saved = write(tmp_path, small("llama"))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(NeuronHostError) as error:
        load(saved)
    assert "no tensor for model.layers.1.self_attn.k_proj.weight" in str(error.value)
    assert "model.layers.1.self_attn.v_proj.weight" in str(error.value)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    saved = write(tmp_path, small("llama"))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = torch.ones(3)
    save_file(tensors, path)
    with pytest.raises(NeuronHostError, match=r"model.norm.weight is \[3\] in the checkpoint"):
        load(saved)


def test_no_weights_for_compiling_without_a_device() -> None:
    config = small("llama")
    with torch.device("meta"):
        model = NeuronTransformersForCausalLM.from_configs(config)
    model.load_weights_lite("anywhere", "cpu", None)
    assert all(p.is_meta for p in model.parameters())
    frequencies = model.model.rotary_emb.inv_freq
    width = frequencies.shape[0] * 2
    base = model.model.config.rope_parameters["rope_theta"]
    want = base ** (-torch.arange(0, width, 2).double() / width)
    assert torch.allclose(frequencies.double(), want, rtol=1e-6)
