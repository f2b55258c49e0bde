"""Run `autoport` in this process, at a fixed width and without colour."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from neuron_autoport.cli.app import app
from neuron_autoport.rules import library, sources
from neuron_autoport.rules.library import load_rules

# Every size is spelled out: numbers in the tests are worked out by hand from these.
SMALL = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Ran:
    """What a command printed and its exit code."""

    out: str
    err: str
    code: int


Run = Callable[..., Ran]


@pytest.fixture
def run() -> Run:
    """run(*arguments, width=100): the command's output; an unexpected exception is raised."""

    def invoke(*arguments: str, width: int = 100) -> Ran:
        env = {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": None}
        result = CliRunner().invoke(app, list(arguments), env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.stdout, result.stderr, result.exit_code)

    return invoke


# What the numbers worked out by hand in the tests of reports rest on, however the library grows.
FEW = (
    "gated_mlp", "gated_mlp_packed", "o_proj", "qkv_proj", "qkv_proj_packed", "rms_norm",
    "rms_norm_fp32_weight", "rms_norm_weightless", "rms_norm_zero_centered",
)  # fmt: skip


@pytest.fixture
def few_rules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For one test the built-in rules are these few, copied to a folder of their own."""
    folder = tmp_path_factory.mktemp("patterns")
    for rule in load_rules():
        if rule.name in FEW:
            (folder / f"{rule.name}.yaml").write_text(rule.text, encoding="utf-8")
    for module in (library, sources):
        monkeypatch.setattr(module, "builtin_folder", lambda: folder)
    return folder


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., str]:
    """model_folder(field=value, ...): a folder with the small configuration, so changed."""

    def make(**changes: Any) -> str:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**SMALL, **changes}), encoding="utf-8")
        return str(folder)

    return make
