"""Which class vLLM reads the configuration of a model by: transformers' own for `--model-impl neuron-transformers`.

Two model types that vLLM has classes of its own for: of one that class refuses the file, for the other it takes another
of transformers. What vLLM does without our plugin is the measure for other values of the flag.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

pytest.importorskip("vllm")

from neuron_autoport.hosts.vllm import compat, configuration
from neuron_autoport.models.tiny import tiny_config

READ = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.transformers_utils.config import get_config

def read(impl):
    overrides = {"num_hidden_layers": 3}  # of five
    args = EngineArgs(
        model=FOLDER, model_impl=impl, skip_tokenizer_init=True, hf_overrides=overrides
    )
    made = args.create_model_config()
    config = made.hf_config
    return [type(config).__module__, config.num_hidden_layers, made.max_model_len]

def beside():
    return [type(get_config(FOLDER, trust_remote_code=False)).__module__]

found = {}
for name in NAMES:
    try:
        found[name] = beside() if name == "beside" else read(name)
    except Exception as error:
        found[name] = [type(error).__name__, str(error).splitlines()[0]]
print("FOUND " + json.dumps(found))
"""
OWN, OTHERS = "neuron-transformers", ["auto", "transformers"]
REFUSED = [
    "StrictDataclassClassValidationError",
    "Class validation error for validator 'validate_layer_type':",
]


def folder_of(model_type: str, folder: Path, **changes: Any) -> Path:
    config = tiny_config(CONFIG_MAPPING[model_type](num_hidden_layers=5))
    config.architectures = ["DeepseekV32ForCausalLM"]  # vLLM knows one of these
    config.save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text(encoding="utf-8")) | changes
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
    return folder


def read(folder: Path, names: list[str], **environment: str) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-c", f"FOLDER, NAMES = {str(folder)!r}, {names!r}\n{READ}"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        check=False,
    )
    line = next((x for x in done.stdout.splitlines() if x.startswith("FOUND ")), None)
    assert line is not None, done.stdout + done.stderr
    found: dict[str, list[Any]] = json.loads(line.removeprefix("FOUND "))
    return found


@pytest.mark.serve
def test_a_class_of_vllm_that_refuses_is_not_asked(tmp_path: Path) -> None:
    folder = folder_of("deepseek_v4", tmp_path)
    without = read(folder, [*OTHERS, "beside"], VLLM_PLUGINS="")
    assert without == dict.fromkeys([*OTHERS, "beside"], REFUSED)
    own = "transformers.models.deepseek_v4.configuration_deepseek_v4"
    # What is changed afterwards, as vLLM does it, no class checks.
    assert read(folder, [OWN, *OTHERS, "beside"]) == {
        OWN: [own, 3, 128],
        **dict.fromkeys(OTHERS, REFUSED),
        "beside": [own],
    }


@pytest.mark.serve
def test_a_class_of_vllm_that_reads_another_model_is_not_asked(tmp_path: Path) -> None:
    folder = folder_of("deepseek_v32", tmp_path)
    with_plugin = read(folder, [OWN, *OTHERS, "beside"])
    assert with_plugin.pop(OWN) == [
        "transformers.models.deepseek_v32.configuration_deepseek_v32", 3, 128,
    ]  # fmt: skip
    without = read(folder, [*OTHERS, "beside"], VLLM_PLUGINS="")
    assert with_plugin == without
    assert without["beside"] == ["transformers.models.deepseek_v3.configuration_deepseek_v3"]


@pytest.mark.serve
def test_what_both_classes_refuse_is_refused_as_before(tmp_path: Path) -> None:
    folder = folder_of("deepseek_v4", tmp_path, mlp_layer_types=["no such"] * 5)
    refused = read(folder, [OWN, "beside"])
    assert refused[OWN] == refused["beside"] == REFUSED


THEIRS = {"deepseek_v4": "DeepseekV4Config", "kimi_linear": "KimiLinearConfig", "eagle": "EAGLE"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"model_type": "deepseek_v4"}, "DeepseekV4Config"),
        ({"model_type": "llama"}, None),  # vLLM reads it by transformers' class
        ({"model_type": "eagle"}, None),  # transformers has none
        ({"model_type": "deepseek_v4", "auto_map": {"AutoConfig": "x.Y"}}, None),  # code of its own
        ({}, None),
    ],
)
def test_transformers_class_stands_in_where_there_are_two(said: Any, found: str | None) -> None:
    cls = configuration.own_class(said, THEIRS)
    assert getattr(cls, "__name__", None) == found
    assert cls is None or cls.__module__.startswith("transformers.")


@pytest.mark.parametrize(
    "overrides", [{"model_type": "llama"}, lambda config: config], ids=["type", "function"]
)
def test_what_makes_it_another_model_is_for_vllm_to_read(overrides: Any, tmp_path: Path) -> None:
    folder = folder_of("deepseek_v4", tmp_path)
    assert configuration.read_own(folder, THEIRS, hf_overrides=overrides) is None
    read = configuration.read_own(folder, THEIRS, hf_overrides={"num_hidden_layers": 1})
    assert read is not None and read[1].num_hidden_layers == 5  # vLLM puts them in afterwards


ROPE = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("parameters", "parts"),
    [
        (None, False),
        ({}, False),
        (ROPE, False),
        ({"main": ROPE, "compress": ROPE}, True),
        ({"main": ROPE, "none": None}, True),
        ({"full_attention": ROPE, "rope_theta": 1e4}, False),
        ({"full_attention": None}, True),  # vLLM says so
    ],
)
def test_parameters_in_parts_of_any_name(parameters: Any, parts: bool) -> None:
    def theirs(given: Any) -> bool:
        return bool(given) and set(given) <= {"full_attention"}

    assert configuration._by_any_label(theirs)(parameters) is parts


def test_another_vllm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import ModelConfig
    from vllm.transformers_utils import config as reading

    monkeypatch.setattr(configuration, "installed_version", lambda: "0.99.0")
    monkeypatch.setattr(ModelConfig, configuration._ROUTED, False, raising=False)
    before = (dict(reading._CONFIG_FORMAT_TO_CONFIG_PARSER), ModelConfig.__post_init__)
    configuration.route_configurations()
    assert (dict(reading._CONFIG_FORMAT_TO_CONFIG_PARSER), ModelConfig.__post_init__) == before
    assert compat.installed_version() in compat.CHECKED_WITH
