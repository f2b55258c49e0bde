"""What the plugin changes in vLLM, and what not; models that are refused before weights load."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.serve


def run(code: str, **environment: str) -> str:
    """Run code in a fresh process, where vLLM loads our plugin as it does for a user."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


RESOLVE = """
import json, sys
from vllm.plugins import load_general_plugins
load_general_plugins(); load_general_plugins()
from vllm import ModelRegistry
from vllm.engine.arg_utils import EngineArgs
found = {}
for impl in IMPLS:
    config = EngineArgs(model=FOLDER, model_impl=impl, skip_tokenizer_init=True).create_model_config()
    cls, arch = ModelRegistry.resolve_model_cls(config.architectures, config)
    found[impl] = [arch, cls.__module__]
print("FOUND " + json.dumps(found))
"""


def resolve(folder: Path, impls: list[str], **environment: str) -> dict[str, list[str]]:
    code = f"FOLDER = {str(folder)!r}\nIMPLS = {impls!r}\n" + textwrap.dedent(RESOLVE)
    line = next(x for x in run(code, **environment).splitlines() if x.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("llama")
    LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        vocab_size=128, architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
    return folder


def test_only_our_value_of_the_flag_changes(llama: Path) -> None:
    others = ["auto", "vllm", "transformers"]
    with_plugin = resolve(llama, [*others, "neuron-transformers"])
    without = resolve(llama, others, VLLM_PLUGINS="")
    assert {k: with_plugin[k] for k in others} == without
    assert with_plugin["neuron-transformers"] == [
        "NeuronTransformersForCausalLM",
        "neuron_autoport.hosts.vllm.model",
    ]


REFUSED = {
    "t5": (
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        "encoder-decoder",
    ),
    "bert": (
        {"model_type": "bert", "architectures": ["BertModel"]},
        "`bert` configuration is an encoder",
    ),
    "gemma3": (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        "is multimodal",
    ),
    "unknown": ({"model_type": "no_such_model", "architectures": ["NoSuch"]}, "no_such_model"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_no_causal_model_is_refused_before_weights(name: str, tmp_path: Path) -> None:
    config, said = REFUSED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = f"""
    from vllm.engine.arg_utils import EngineArgs
    try:
        EngineArgs(
            model={str(tmp_path)!r}, model_impl="neuron-transformers", skip_tokenizer_init=True
        ).create_model_config()
    except ValueError as error:
        print("REFUSED", error)
    """
    out = run(code)
    assert "REFUSED" in out
    assert said in out


def test_another_vllm_is_named_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuron_autoport.hosts.vllm import compat

    monkeypatch.setattr(compat, "installed_version", lambda: "0.99.0")
    with pytest.raises(compat.HostError, match=r"vLLM 0\.99\.0 is not one .* \(0\.32\.0\)"):
        compat.check_version()


def test_a_method_that_reads_no_fusers_is_refused() -> None:
    from neuron_autoport.hosts.vllm import compat

    def recursive_replace(self: object) -> None:
        """Another version's method."""

    with pytest.raises(compat.HostError, match="no longer reads its fusers"):
        compat.with_fusers(recursive_replace, dict, frozenset())
