"""What MODEL may be, and the message for each way a user can get it wrong.

Expected architectures come from transformers' own classes; error texts are checked for the file,
field, position or option the user needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
from transformers import LlamaConfig, MixtralConfig

from neuron_autoport.errors import ModelError
from neuron_autoport.models.source import load_model_config


def write(folder: Path, content: str | dict[str, object]) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def failure(model: str, **kwargs: bool) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load_model_config(model, **kwargs)
    assert caught.value.where and caught.value.next_step
    return caught.value


def test_model_type() -> None:
    source = load_model_config("llama")
    assert (source.kind, source.folder, source.architecture) == (
        "model_type",
        None,
        "LlamaForCausalLM",
    )
    assert source.config.to_dict() == LlamaConfig().to_dict()
    assert source.text_config is source.config


def test_composite_model_type_has_a_text_part() -> None:
    source = load_model_config("llama4")
    assert source.text_config is source.config.text_config
    assert source.text_config.model_type == "llama4_text"
    assert source.architecture == "Llama4ForCausalLM"


def test_folder(tmp_path: Path) -> None:
    config = MixtralConfig(hidden_size=48, num_hidden_layers=3, num_attention_heads=4)
    config.save_pretrained(tmp_path)
    source = load_model_config(str(tmp_path))
    assert (source.kind, source.folder) == ("folder", tmp_path)
    assert source.architecture == "MixtralForCausalLM"
    assert (source.config.hidden_size, source.config.num_hidden_layers) == (48, 3)


def test_relative_folder_is_not_taken_for_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    LlamaConfig(hidden_size=64).save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    assert load_model_config("org/name").kind == "folder"


def test_folder_without_config(tmp_path: Path) -> None:
    error = failure(str(tmp_path))
    assert "no config.json" in error.what and error.where == str(tmp_path)


def test_missing_folder() -> None:
    assert failure("./no/such/folder").where == "./no/such/folder"


def test_file_instead_of_folder(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "llama"})
    error = failure(str(tmp_path / "config.json"))
    assert error.next_step == f"autoport inspect {tmp_path}"


def test_json_error_has_line_and_column(tmp_path: Path) -> None:
    write(tmp_path, '{\n  "model_type": "llama",\n  "hidden_size": ,\n}')
    assert failure(str(tmp_path)).where == f"{tmp_path / 'config.json'}:3:18"


@pytest.mark.parametrize("content", ["[1, 2]", "3"])
def test_json_that_is_no_object(tmp_path: Path, content: str) -> None:
    assert "object" in failure(str(write(tmp_path, content))).what


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    assert failure(str(tmp_path)).where == str(tmp_path / "config.json")


def test_no_model_type(tmp_path: Path) -> None:
    assert "model_type" in failure(str(write(tmp_path, {"hidden_size": 8}))).what


def test_unknown_model_type_in_file(tmp_path: Path) -> None:
    error = failure(str(write(tmp_path, {"model_type": "mixtrall"})))
    assert "mixtrall" in error.what and "mixtral" in str(error.next_step)


def test_bad_field_is_named(tmp_path: Path) -> None:
    error = failure(str(write(tmp_path, {"model_type": "llama", "hidden_size": "big"})))
    assert "`hidden_size`" in str(error.where)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("qwen-3", "qwen3"), ("Mixtral", "mixtral"), ("gemma3-text", "gemma3_text"),
     ("LlamaForCausalLM", "llama")],
)  # fmt: skip
def test_unknown_name_suggests_the_nearest(typed: str, nearest: str) -> None:
    step = str(failure(typed).next_step)
    assert nearest in step and "autoport inspect FOLDER" in step


@pytest.mark.parametrize("model", ["t5", "bart", "whisper"])
def test_encoder_decoder(model: str) -> None:
    assert "encoder-decoder" in failure(model).what


@pytest.mark.parametrize(
    ("model", "field"), [("bert", "is_decoder"), ("roberta", "is_decoder"), ("xlm", "causal")]
)
def test_encoder_names_its_field(model: str, field: str) -> None:
    error = failure(model)
    assert "encoder" in error.what and field in str(error.where)


def test_an_encoder_family_may_be_a_decoder(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "bert", "is_decoder": True})
    assert load_model_config(str(tmp_path)).architecture == "BertLMHeadModel"


def test_meaningless_is_decoder_is_ignored() -> None:
    source = load_model_config("gpt_neox")
    assert source.config.is_decoder is False and source.architecture == "GPTNeoXForCausalLM"


def test_not_a_language_model() -> None:
    assert "not a causal language model" in failure("vit").what


def test_text_part_of_another_model_is_pointed_out() -> None:
    assert "`llama`" in str(failure("llava").next_step)


def test_custom_code_needs_permission(tmp_path: Path) -> None:
    auto_map = {
        "AutoConfig": "configuration_mine.MineConfig",
        "AutoModelForCausalLM": "modeling_mine.Mine",
    }
    error = failure(str(write(tmp_path, {"model_type": "mine", "auto_map": auto_map})))
    assert "--trust-remote-code" in str(error.next_step) and "modeling_mine.Mine" in error.what


def test_known_model_type_ignores_custom_code(tmp_path: Path) -> None:
    auto_map = {"AutoConfig": "configuration_mine.MineConfig"}
    write(tmp_path, {"model_type": "llama", "auto_map": auto_map})
    assert load_model_config(str(tmp_path)).architecture == "LlamaForCausalLM"


CONFIG_CODE = """
from transformers import PretrainedConfig

class MineConfig(PretrainedConfig):
    model_type = "mine"
    hidden_size: int = 32
"""


def test_custom_code_with_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache")
    )
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "configuration_mine.py").write_text(CONFIG_CODE, encoding="utf-8")
    auto_map = {
        "AutoConfig": "configuration_mine.MineConfig",
        "AutoModelForCausalLM": "modeling_mine.Mine",
    }
    write(folder, {"model_type": "mine", "hidden_size": 48, "auto_map": auto_map})
    source = load_model_config(str(folder), trust_remote_code=True)
    assert (source.architecture, source.config.hidden_size) == ("Mine", 48)
    assert source.trust_remote_code


def test_custom_code_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache")
    )
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "configuration_broken.py").write_text(
        "import no_such_package_at_all\n", encoding="utf-8"
    )
    write(folder, {"model_type": "broken", "auto_map": {"AutoConfig": "configuration_broken.C"}})
    error = failure(str(folder), trust_remote_code=True)
    assert "no_such_package_at_all" in error.what and "install" in str(error.next_step)


def test_hub_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    error = failure("some-org/some-model")
    assert "offline" in error.what and error.where == "some-org/some-model"


def test_hub_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise ConnectionError("connection refused")

    monkeypatch.setattr("neuron_autoport.models.source.hub_answers", lambda *_: True)
    monkeypatch.setattr("neuron_autoport.models.source.hf_hub_download", refuse)
    error = failure("some-org/some-model")
    assert "cannot be reached" in error.what and "connection refused" in error.what


@pytest.mark.parametrize("model", ["musicgen"])
def test_default_that_is_no_configuration_names_the_field(model: str) -> None:
    error = failure(model)
    assert "`text_encoder`" in str(error.where) and "FOLDER" in str(error.next_step)


def test_resolving_imports_no_modeling_code() -> None:
    code = (
        "import sys; from neuron_autoport.models.source import load_model_config; "
        "load_model_config('llama'); load_model_config('gpt_neox'); "
        "print([m for m in sys.modules if m.rpartition('.')[2].startswith('modeling_') "
        "and '.models.' in m and '.auto.' not in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
