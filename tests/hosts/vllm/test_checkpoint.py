"""A checkpoint that is not what the model takes: refused by name, never served with whatever the memory held.

The tensors come through vLLM's own reader of the folder; what it does with them is looked at with one whole engine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("vllm")

from transformers import AutoConfig, AutoModel
from vllm.config import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.transformers.utils import init_on_device_without_buffers

from neuron_autoport.hosts.vllm.checkpoint import COMPUTED, Checkpoint, Weights, logger
from neuron_autoport.hosts.vllm.compat import HostError
from tests.hosts.vllm.serving import engine, hugging_face_tokens, make_model, prompts, serve

pytestmark = pytest.mark.serve

Q = "model.layers.1.self_attn.q_proj.weight"
EXPERT = "model.layers.0.mlp.experts.1.up_proj.weight"
Tensors = dict[str, torch.Tensor]
Change = Callable[[Path, Tensors], Tensors | None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(
        "qwen3_moe", tmp_path_factory.mktemp("moe"), num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, num_hidden_layers=1,
    )  # fmt: skip


def broken(good: Path, folder: Path, change: Change) -> Path:
    """A copy of a folder, its one file changed: new tensors, or (None) whatever was done."""
    made = folder / "model"
    shutil.copytree(good, made)
    weights = made / "model.safetensors"
    tensors = change(weights, load_file(weights))
    if tensors is not None:
        save_file(tensors, weights, {"format": "pt"})
    return made


def without(name: str) -> Change:
    return lambda _, tensors: {k: v for k, v in tensors.items() if k != name}


def with_(name: str, *shape: int) -> Change:
    return lambda _, tensors: {**tensors, name: torch.ones(shape)}


def renamed(_: Path, tensors: Tensors) -> Tensors:
    return {k.replace("1.self_attn.q_proj", "1.self_attn.query"): v for k, v in tensors.items()}


def cut(file: Path, _: Tensors) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def empty(file: Path, _: Tensors) -> None:
    file.write_bytes(b"")


def garbage(file: Path, _: Tensors) -> None:
    file.write_bytes(b"\xff" * 200)


def gone(file: Path, _: Tensors) -> None:
    file.unlink()


def no_shard(file: Path, tensors: Tensors) -> None:
    """An index that names a second file, which is not there."""
    file.rename(file.with_name("model-00001-of-00002.safetensors"))
    where = dict.fromkeys(tensors, "model-00001-of-00002.safetensors")
    where[Q] = "model-00002-of-00002.safetensors"
    index = json.dumps({"metadata": {}, "weight_map": where})
    file.with_name("model.safetensors.index.json").write_text(index, encoding="utf-8")


def bad_index(file: Path, _: Tensors) -> None:
    file.with_name("model.safetensors.index.json").write_text("{", encoding="utf-8")


def read(folder: Path, taken: list[str], beside: tuple[str, ...] = ("lm_head.weight",)) -> None:
    """Read a folder through vLLM's reader; `taken` gets the names a loader would see."""

    def loader(weights: Weights) -> set[str]:
        for name, tensor in weights:
            assert name != "lm_head.weight" or tensor.shape == (128, 64)
            taken.append(name)
        return set(taken)

    with init_on_device_without_buffers("meta"):  # as vLLM builds it
        model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    reader = DefaultModelLoader(LoadConfig(use_tqdm_on_load=False))
    weights = reader.get_all_weights(SimpleNamespace(model=str(folder), revision=None), model)
    checkpoint = Checkpoint(model, str(folder))
    loaded = checkpoint.load(loader, weights, all_experts=True)
    checkpoint.check_head(beside, loaded)


def whole(folder: Path) -> list[str]:
    taken: list[str] = []
    read(folder, taken)
    return taken


def test_a_good_checkpoint_passes_as_it_is(good: Path, experts: Path) -> None:
    assert sorted(whole(good)) == sorted(load_file(good / "model.safetensors"))
    assert EXPERT in whole(experts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without(Q), ["lacks tensors", Q]),
        (without("model.norm.weight"), ["lacks tensors", "model.norm.weight"]),
        (without("lm_head.weight"), ["lacks tensors", "lm_head.weight"]),
        (renamed, ["lacks tensors", Q, "nearest", "layers.1.self_attn.query.weight"]),
        (with_(Q, 3, 3), ["other shapes", f"{Q} (is [3, 3], must be [128, 64])"]),
        (with_("lm_head.weight", 3, 3), ["lm_head.weight [3, 3]", "cannot be loaded"]),
    ],
)
def test_a_tensor_is_named(good: Path, tmp_path: Path, change: Change, words: list[str]) -> None:
    folder = broken(good, tmp_path, change)
    with pytest.raises(HostError) as error:
        whole(folder)
    for word in words:
        assert word in error.value.text()
    assert error.value.where == str(folder)
    assert f"autoport inspect {folder}" in str(error.value.next_step)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without(EXPERT), f"{EXPERT} is missing"),
        (with_(EXPERT, 3, 3), f"{EXPERT} is [3, 3], others"),
    ],
)
def test_one_expert_of_many(experts: Path, tmp_path: Path, change: Change, words: str) -> None:
    with pytest.raises(HostError) as error:
        whole(broken(experts, tmp_path, change))
    assert words in error.value.what
    assert "autoport inspect" in str(error.value.next_step)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, ["no whole safetensors file", "model.safetensors", "copy it again"]),
        (empty, ["no whole safetensors file (0 bytes)", "model.safetensors", "copy it again"]),
        (garbage, ["no whole safetensors file (200 bytes)", "copy it again"]),
        (no_shard, ["not there: model-00002-of-00002.safetensors", "index.json", "copy them to"]),
        (bad_index, ["no index", "model.safetensors.index.json", "copy it again"]),
        (gone, ["cannot be read", "Cannot find any model weights"]),
    ],
)
def test_a_file_is_named(good: Path, tmp_path: Path, change: Change, words: list[str]) -> None:
    with pytest.raises(HostError) as error:
        whole(broken(good, tmp_path, change))
    for word in words:
        assert word in error.value.text()


def test_a_buffer_that_is_saved_is_missed_as_a_parameter_is(tmp_path: Path) -> None:
    """The bias of a router that chooses by it: transformers would make zeros of it, and choose others."""
    bias = "model.layers.0.mlp.gate.e_score_correction_bias"
    folder = make_model(
        "glm4_moe", tmp_path / "good", n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=32, num_hidden_layers=1, first_k_dense_replace=0,
    )  # fmt: skip
    assert bias in whole(folder)
    with pytest.raises(HostError, match="lacks tensors") as error:
        whole(broken(folder, tmp_path, without(bias)))
    assert bias in error.value.what


def test_a_buffer_that_the_model_computes_need_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers serves it with the value that the model is built with."""
    computed = "model.layers.0.mlp.act_fn.beta"
    folder = make_model("apertus", tmp_path / "good", num_hidden_layers=1)
    assert computed in whole(folder)
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *values: said.append(text % values))
    assert computed not in whole(broken(folder, tmp_path, without(computed)))
    assert [line for line in said if COMPUTED in line and computed in line]


def test_no_engine_starts_without_the_bias_of_the_head(tmp_path: Path) -> None:
    """vLLM has it only where the checkpoint does."""
    folder = broken(make_model("phi", tmp_path), tmp_path / "less", without("lm_head.bias"))
    done = engine(folder, prompts()[:1], "--eager")
    assert done.returncode != 0 and "RESULT" not in done.stdout
    said = done.stdout + done.stderr
    assert "The checkpoint lacks tensors of the model: lm_head.bias." in said


def test_a_tensor_that_no_module_takes_is_left_out(good: Path, tmp_path: Path) -> None:
    folder = broken(good, tmp_path, with_("model.layers.9.extra", 3))
    assert "model.layers.9.extra" not in whole(folder)
    served = serve(folder, prompts()[:2], "--eager")
    assert served.tokens == hugging_face_tokens(good, prompts()[:2])
    assert "no module takes are left out: model.layers.9.extra" in served.log


def test_no_engine_starts_with_a_weight_that_was_not_loaded(good: Path, tmp_path: Path) -> None:
    folder = broken(good, tmp_path, without(Q))
    done = engine(folder, prompts()[:1], "--eager")
    assert done.returncode != 0 and "RESULT" not in done.stdout
    said = done.stdout + done.stderr
    assert f"The checkpoint lacks tensors of the model: {Q}." in said
    assert f"try: autoport inspect {folder}" in said
