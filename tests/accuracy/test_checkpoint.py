"""Checkpoints that are not what the model takes: each is refused by name before anything is judged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from neuron_autoport.accuracy.weights import load_weights
from neuron_autoport.errors import ModelError
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import load_model_config
from tests.helpers import small_config

UP = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    real_model(small_config("llama")).save_pretrained(folder)
    return folder


@pytest.fixture
def broken(
    good: Path, tmp_path: Path
) -> Callable[[Callable[[Path, Tensors], Tensors | None]], str]:
    """A copy of the good folder, its one file changed: new tensors, or (None) whatever was done."""

    def make(change: Callable[[Path, Tensors], Tensors | None]) -> str:
        for file in good.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        weights = tmp_path / "model.safetensors"
        tensors = change(weights, load_file(weights))
        if tensors is not None:
            save_file(tensors, weights, {"format": "pt"})
        return str(tmp_path)

    return make


def without(_: Path, tensors: Tensors) -> Tensors:
    return {k: v for k, v in tensors.items() if k != UP}


def renamed(_: Path, tensors: Tensors) -> Tensors:
    return {k.replace("1.mlp.up_proj", "1.mlp.up_projection"): v for k, v in tensors.items()}


def reshaped(_: Path, tensors: Tensors) -> Tensors:
    return {**tensors, UP: torch.ones(3, 3)}


def garbage(file: Path, _: Tensors) -> None:
    file.write_bytes(b"\xff" * 200)


def cut(file: Path, _: Tensors) -> None:
    file.write_bytes(file.read_bytes()[:-8])


def gone(file: Path, _: Tensors) -> None:
    file.unlink()


def no_shard(file: Path, tensors: Tensors) -> None:
    """An index that names a second file, which is not there."""
    where = dict.fromkeys(tensors, file.name) | {UP: "model-00002.safetensors"}
    text = json.dumps({"metadata": {}, "weight_map": where})
    file.with_name("model.safetensors.index.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_shard, ["not there: model-00002.safetensors", "index.json", "copy them to"]),
        (without, ["lacks tensors", UP]),
        (renamed, ["lacks tensors", UP, "nearest", "up_projection"]),
        (reshaped, ["other shapes", UP, "is [3, 3], must be [96, 64]"]),
        (garbage, ["no whole safetensors file (200 bytes)", "model.safetensors"]),
        (cut, ["no whole safetensors file", "copy it again"]),
        (gone, ["cannot be loaded", "model.safetensors"]),
    ],
)
@pytest.mark.parametrize("layered", [False, True])
def test_a_wrong_checkpoint_is_refused_by_name(
    broken: Callable[..., str],
    change: Callable[..., Tensors | None],
    words: list[str],
    layered: bool,
) -> None:
    source = load_model_config(broken(change))
    with pytest.raises(ModelError) as error:
        weights = load_weights(source, layered=layered)
        for unit in weights.units:
            weights.unit(unit)
    for word in words:
        assert word in error.value.text()


def test_a_tensor_that_no_module_takes_is_told(
    broken: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = broken(lambda _, tensors: {**tensors, "model.layers.9.extra": torch.ones(3)})
    with caplog.at_level(logging.WARNING, "neuron_autoport"):
        load_weights(load_model_config(folder))
    assert "left out: model.layers.9.extra" in caplog.text
