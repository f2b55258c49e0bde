"""`autoport validate` from the outside: exit codes, report files, failure view, bisect, memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from neuron_autoport.accuracy import run
from neuron_autoport.accuracy.schema import Report
from neuron_autoport.accuracy.weights import Memory
from neuron_autoport.cli.app import app
from neuron_autoport.models.build import real_model
from tests.accuracy.faults import config_of, rules_with
from tests.helpers import small_config


def autoport(*words: str, columns: int = 200) -> Any:
    return CliRunner().invoke(app, ["validate", *words], env={"COLUMNS": str(columns)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    real_model(config_of("llama")).save_pretrained(path)
    return path


def test_a_port_that_passes(folder: Path, tmp_path: Path) -> None:
    files = tmp_path / "r.json", tmp_path / "r.html"
    done = autoport(str(folder), "--level", "3,2", "--no-engine", "--json", str(files[0]),
                    "--html", str(files[1]), "--length", "32", "--count", "4")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (
        "all levels passed" in done.output
        and "the device: everything here ran on a CPU" in done.output
    )
    assert re.search(r"LlamaMLP ×3 +0-2 ", done.output)
    report = Report.model_validate_json(files[0].read_text())
    assert report.passed and report.sites == {
        "add_rms_norm": 3,
        "gated_mlp": 3,
        "o_proj": 3,
        "qkv_proj": 3,
        "rms_norm": 7,
        "rope_pair": 3,
    }
    assert report.level3 is not None and {m.layer for m in report.level3.modules} == {None, 0, 1, 2}
    assert [d.layer for d in report.level3.depth] == [None, 0, 1, 2, None]
    assert {m.mode for m in report.level2[0].modes} == {"whole", "chunks", "decode", "batch"}
    assert {(c.layer, c.part, c.mode) for c in report.level2[0].cache} == {
        (i, part, mode) for i in range(3) for part in ("keys", "values") for mode in ("whole", "chunks", "decode")
    }  # fmt: skip
    page = files[1].read_text()
    assert "<svg" in page and page.count("<polyline") == 2 and page.count("<circle") == 10
    assert (
        "model.layers.2.mlp" in page and "Not shown by this" in page and "version of torch" in page
    )
    assert not re.search(
        r"""(?:src|href)\s*=|@import|url\(|<script""", page
    )  # nothing from elsewhere


def test_a_wrong_rule_is_named_and_can_be_switched_off(folder: Path, tmp_path: Path) -> None:
    rules_with(tmp_path, "rms_norm", "eps=eps", "eps=eps * 10")
    mine = ("--rules", str(tmp_path), "--level", "3", "--length", "32")
    left_out = autoport(str(folder), *mine)
    assert (
        left_out.exit_code == 3
        and "failed their proof are left out: LlamaRMSNorm:rms_norm" in left_out.output
    )
    done = autoport(
        str(folder), *mine, "--no-prove", "--bisect", "--json", str(tmp_path / "r.json")
    )
    assert done.exit_code == 3
    found = json.loads((tmp_path / "r.json").read_text())
    assert (
        not found["passed"]
        and [f["guilty"] for f in found["failures"]] == [["LlamaRMSNorm:rms_norm"]] * 2
    )
    assert (
        "the smallest set of rules without which all passes is LlamaRMSNorm:rms_norm" in done.output
    )
    command = f"autoport validate {folder} --rules {tmp_path} --without LlamaRMSNorm:rms_norm"
    assert command in done.output and "units in the last place" in done.output
    off = autoport(str(folder), *mine, "--no-prove", "--without", "LlamaRMSNorm:rms_norm")
    assert off.exit_code == 0 and "switched off: LlamaRMSNorm:rms_norm" in off.output


def test_layer_by_layer_within_a_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit goes layer by layer; the estimate is shown before anything is loaded."""
    words = (str(folder), "--level", "3", "--length", "16")
    done = autoport(*words)
    assert done.exit_code == 0 and "neuron-transformers  layer by layer" not in done.output
    assert re.search(
        r"memory: in memory [\d.]+ GiB.*, available [\d.]+ GiB\n.*loading weights", done.output
    )
    small = Memory(weights=0, whole=2**31, layered=2**29, available=2**30)
    monkeypatch.setattr(run, "estimate_memory", lambda *_: small)
    done = autoport(*words)
    assert done.exit_code == 0 and "neuron-transformers  layer by layer" in done.output
    monkeypatch.undo()
    none = autoport(*words, "--memory", "0.1")
    assert none.exit_code == 2 and "does not fit into memory even layer by layer" in none.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("llama", "--level", "4"), 2, "levels are 1, 2 and 3"),
        (("llama", "--level", "1"), 2, "Level 1 cannot be run"),
        (("llama", "--engine"), 2, "The engine cannot be asked"),
        (("llama", "--impl", "vllm", "--level", "3"), 2, "at levels 2 and 1"),
        (("llama", "--without", "nothing"), 2, "`nothing` is no rule used in this model"),
        (("no-such-model",), 2, "no model type or folder"),
        (("llama", "--json", "/nowhere/at/all/r.json"), 2, "no such folder to write to"),
        (("llama", "--prompts", "/nowhere.txt", "--no-engine"), 2, "prompts cannot be read"),
    ],
)
def test_mistakes(words: tuple[str, ...], code: int, message: str) -> None:
    done = autoport(*words)
    assert done.exit_code == code and message in " ".join(done.output.split()), done.output
    assert "Traceback" not in done.output


def test_threads_are_settled_before_torch_is_there() -> None:
    """OpenMP reads its settings once, when torch is imported: the command must come first."""
    code = (
        "import os, sys; os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "import neuron_autoport.cli.app\n"
        "from neuron_autoport.cli.validate import _settle_threads\n"
        "assert 'torch' not in sys.modules\n"
        "_settle_threads(); print(os.environ['OMP_WAIT_POLICY'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "PASSIVE\n"), done.stderr


def test_a_model_type_stands_for_a_small_model() -> None:
    done = autoport("qwen3", "--no-engine", "--level", "3", "--length", "24", "--dtype", "float32")
    assert done.exit_code == 0 and "small model, adversarial weights" in done.output


def test_switching_off_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuron_autoport.pipeline import proved_port

    config = small_config("llama")
    monkeypatch.setenv("AUTOPORT_WITHOUT", "LlamaMLP:gated_mlp, o_proj")
    port = proved_port(config).port
    found = {s.rule.name for _, s in port.sites()}
    assert found == {
        "qkv_proj",
        "rms_norm",
        "add_rms_norm",
        "rope_pair",
        "stacked_pair",
        "act_and_mul",
    }
    assert port.without == {"LlamaMLP:gated_mlp", "LlamaAttention:o_proj"}
