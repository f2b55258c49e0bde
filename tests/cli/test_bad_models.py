"""Bad models, a table: what is wrong with the folder, the exit code, and words of the error.

No traceback, nothing on stdout, and a next step in each. What `validate` says of weights is below.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL, Run

MINE = {
    **SMALL, "model_type": "mine",
    "auto_map": {"AutoConfig": "conf.MyConfig", "AutoModelForCausalLM": "mod.MyModel"},
}  # fmt: skip
CONFIG_CLASS = "from transformers import PretrainedConfig\nclass MyConfig(PretrainedConfig):\n    model_type = 'mine'\n"
GONE = "from transformers.utils import a_name_that_is_gone\n"
RAISES = """from transformers import PreTrainedModel
from .conf import MyConfig


class MyModel(PreTrainedModel):
    config_class = MyConfig

    def __init__(self, config):
        super().__init__(config)
        raise ValueError("no such layer")
"""


def text(**changes: Any) -> str:
    return json.dumps({**SMALL, **changes})


# what is wrong: (files of the folder, options, words of the error)
BAD: dict[str, tuple[dict[str, str | bytes], list[str], list[str]]] = {
    "no config": ({}, [], ["This folder has no config.json"]),
    "empty": ({"config.json": ""}, [], ["config.json:1:1", "not JSON"]),
    "truncated": ({"config.json": text()[:40]}, [], ["config.json:1:4", "not JSON"]),
    "not text": ({"config.json": b"\xff\xfe\x00"}, [], ["cannot be read", "replace the file"]),
    "nested": ({"config.json": "[" * 100_000}, [], ["nested too deeply"]),
    "no object": ({"config.json": "[1, 2]"}, [], ["holds no object"]),
    "no model type": ({"config.json": "{}"}, [], ["no `model_type`", "llama"]),
    "model type is a number": ({"config.json": text(model_type=7)}, [], ["no `model_type`"]),
    "unknown model type": ({"config.json": text(model_type="llamma")}, [], ["`llamma`", "llama"]),
    "size is a word": ({"config.json": text(hidden_size="big")}, [], ["field `hidden_size`"]),
    "size is a fraction": ({"config.json": text(hidden_size=1.5)}, [], ["field `hidden_size`"]),
    "no heads": ({"config.json": text(num_attention_heads=0)}, [], ["cannot be built"]),
    "less than no layers": ({"config.json": text(num_hidden_layers=-1)}, [], ["of -1 layers"]),
    "a billion layers": (
        {"config.json": text(num_hidden_layers=10**9)}, [], ["field `num_hidden_layers`"]
    ),
    "unknown activation": ({"config.json": text(hidden_act="warp")}, [], ["'warp'"]),
    "unknown rotation": (
        {"config.json": text(rope_parameters={"rope_type": "warp"})}, [], ["`rope_parameters`"]
    ),
    "encoder": ({"config.json": '{"model_type": "bert"}'}, [], ["is an encoder", "is_decoder"]),
    "encoder-decoder": ({"config.json": '{"model_type": "t5"}'}, [], ["encoder-decoder"]),
    "no language model": (
        {"config.json": '{"model_type": "vit"}'}, [], ["not a causal language model"]
    ),
    "own code, not allowed": (
        {"config.json": json.dumps(MINE), "conf.py": "raise SystemExit\n"}, [],
        ["conf.MyConfig", "--trust-remote-code"],
    ),
    "own code is not there": (
        {"config.json": json.dumps(MINE)}, ["--trust-remote-code"], ["conf.py", "auto_map"]
    ),
    "own code raises": (
        {"config.json": json.dumps(MINE), "conf.py": "\nraise RuntimeError('boom')\n"},
        ["--trust-remote-code"], ["RuntimeError: boom", "conf.py:2", "mend conf.py"],
    ),
    "own code imports what is gone": (
        {"config.json": json.dumps(MINE), "conf.py": GONE}, ["--trust-remote-code"],
        ["a_name_that_is_gone", "conf.py:1", "another transformers"],
    ),
    "own code is not Python": (
        {"config.json": json.dumps(MINE), "conf.py": CONFIG_CLASS, "mod.py": "def (\n"},
        ["--trust-remote-code"], ["SyntaxError", ":1"],
    ),
    "own model raises": (
        {"config.json": json.dumps(MINE), "conf.py": CONFIG_CLASS, "mod.py": RAISES},
        ["--trust-remote-code"], ["ValueError: no such layer", "mod.py:10"],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def modules_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers copies a model's code to a cache and imports it from there: one for each test."""

    def forget() -> None:
        for name in [n for n in sys.modules if n.split(".")[0] == "transformers_modules"]:
            del sys.modules[name]

    place = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(place))
    elsewhere = [p for p in sys.path if not (Path(p) / "transformers_modules").is_dir()]
    monkeypatch.setattr(sys, "path", elsewhere)
    forget()
    yield
    forget()


@pytest.mark.parametrize("case", BAD)
def test_a_bad_model_is_explained(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    files, options, words = BAD[case]
    # The library's logger holds the standard error of an earlier test, which is closed.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    # transformers keeps modules by the folder's name: each case has its own.
    folder = tmp_path / case.replace(" ", "-").replace(",", "")
    folder.mkdir()
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    ran = run("inspect", str(folder), *options, width=300)
    assert ran.code == 2, ran.out
    assert ran.out == "" and "Traceback" not in ran.err
    assert "error: " in ran.err and "try: " in ran.err
    for word in words:
        assert word in ran.err, ran.err
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_a_folder_without_weights_is_fine_to_inspect(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text(), encoding="utf-8")
    assert run("inspect", str(tmp_path)).code == 0
