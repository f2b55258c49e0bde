"""Errors and demands: exit codes, what is said, and no traceback for a user's mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_autoport import __version__
from neuron_autoport.rules.builtin import builtin_folder
from tests.cli.conftest import Run

Folder = Callable[..., str]

pytestmark = pytest.mark.usefixtures("few_rules")
# arguments, exit code, and words that stderr must have
MISTAKES = {
    "unknown model": (["inspect", "qwen33"], 2, ["qwen33", "try:", "qwen3"]),
    "no such folder": (["inspect", "./nowhere"], 2, ["There is no such folder", "./nowhere"]),
    "folder without config": (["inspect", "{empty}"], 2, ["has no config.json", "try:"]),
    "config is not JSON": (["inspect", "{broken}"], 2, ["config.json:1:3", "not JSON"]),
    "encoder-decoder": (["inspect", "t5"], 2, ["encoder-decoder", "is_encoder_decoder"]),
    "no such rules": (["inspect", "llama", "--rules", "{empty}/no"], 2, ["does not exist", "no"]),
    "wrong rule": (["inspect", "llama", "--rules", "{rules}"], 2, ["wrong.yaml:1:1", "`match`"]),
    "unknown command": (["inspekt", "llama"], 2, ["inspekt", "inspect"]),
    "unknown option": (["inspect", "llama", "--jsn"], 2, ["--jsn", "--json"]),
    "unknown target": (["inspect", "llama", "--target", "trn9"], 2, ["trn9", "trn2"]),
    "no ranks": (["inspect", "llama", "--tp", "0"], 2, ["--tp"]),
    "two outputs": (["inspect", "llama", "--diff", "--json"], 2, ["--diff", "--json"]),
    "no model": (["inspect"], 2, ["MODEL"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_explained(run: Run, tmp_path: Path, case: str) -> None:
    places = {name: tmp_path / name for name in ("empty", "broken", "rules")}
    for place in places.values():
        place.mkdir()
    (places["broken"] / "config.json").write_text("{ nonsense", encoding="utf-8")
    (places["rules"] / "wrong.yaml").write_text("rule: wrong\n", encoding="utf-8")
    arguments, code, words = MISTAKES[case]
    ran = run(*(a.format(**places) for a in arguments))
    assert ran.code == code
    assert ran.out == ""
    assert "Traceback" not in ran.err
    said = " ".join(ran.err.replace("│", " ").split())
    assert [w for w in words if w not in said] == []


def test_require_coverage(run: Run, model_folder: Folder) -> None:
    folder = model_folder(
        hidden_size=1024,
        intermediate_size=4096,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=12000,
    )
    # In sites: the products of three layers. Left: attention at context 1024, and the head.
    fused = 3 * 2 * (4 * 1024**2 + 3 * 1024 * 4096)
    left = 3 * (2 * 8 * 1024 * 256 + 5 * 8 * 1024) + 2 * 1024 * 12000
    share = 100 * fused / (fused + left)
    assert 72 < share < 74  # norms and the like are far below one percent
    enough = run("inspect", folder, "--require-coverage", "72")
    assert (enough.code, enough.err) == (0, "")
    ran = run("inspect", folder, "--require-coverage", "74")
    assert ran.code == 1
    assert "fused 16 of 16 sites" in ran.out  # the report is shown all the same
    assert "74 % was demanded" in ran.err and "Traceback" not in ran.err
    as_json = run("inspect", folder, "--json", "--require-coverage", "74")
    assert as_json.code == 1
    assert json.loads(as_json.out)["coverage"]["flops"]["percent"] == pytest.approx(share, abs=0.1)


def test_strict_wants_no_refusal(run: Run, model_folder: Folder, tmp_path: Path) -> None:
    assert run("inspect", model_folder(), "--strict").code == 0
    text = (builtin_folder() / "norm" / "rms_norm.yaml").read_text(encoding="utf-8")
    text = text.replace("rule: rms_norm", "rule: picky_norm")
    text = text.replace("- w.ndim == 1", "- w.shape[0] == 7")
    (tmp_path / "picky.yaml").write_text(text, encoding="utf-8")
    arguments = ("inspect", model_folder(), "--rules", str(tmp_path))
    shown = run(*arguments)
    assert shown.code == 0
    assert "AP301  picky_norm in LlamaRMSNorm ×7" in shown.out
    assert "`w.shape[0] == 7` does not hold" in shown.out
    assert "fused 16 of 23 sites," in shown.out
    strict = run(*arguments, "--strict")
    assert strict.code == 1
    assert "picky_norm" in strict.err and "Traceback" not in strict.err


def test_prove_shows_figures(run: Run, model_folder: Folder) -> None:
    ran = run("inspect", model_folder(), "--prove")
    assert (ran.code, ran.err) == (0, "")
    assert "Proof" in ran.out and "LlamaMLP" in ran.out
    assert ran.out.count("passed") == 4 and "failed" not in ran.out


def test_a_wrong_rule_is_dropped_by_the_proof(
    run: Run, model_folder: Folder, tmp_path: Path
) -> None:
    text = (builtin_folder() / "mlp" / "gated_mlp.yaml").read_text(encoding="utf-8")
    wrong = text.replace("gate.weight, up.weight", "up.weight, gate.weight")
    assert wrong != text
    (tmp_path / "wrong.yaml").write_text(wrong, encoding="utf-8")
    ran = run("inspect", model_folder(), "--rules", str(tmp_path), "--prove", "--json")
    assert ran.code == 3
    assert "gated_mlp in LlamaMLP" in ran.err and "Traceback" not in ran.err
    report = json.loads(ran.out)
    assert [(d["rule"], d["code"]) for d in report["proof"]["dropped"]] == [("gated_mlp", "AP701")]
    mlp = next(c for c in report["classes"] if c["name"] == "LlamaMLP")
    assert (mlp["sites"], mlp["dropped"]) == ([], ["gated_mlp"])
    # three layers lost one site of five each, one norm stands alone
    assert report["coverage"]["sites"] == {"part": 13, "whole": 16, "percent": 81.25}


def test_own_rules_replace_the_built_in(run: Run, model_folder: Folder, tmp_path: Path) -> None:
    text = (builtin_folder() / "norm" / "rms_norm.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text.replace("w.ndim == 1", "w.ndim == 2"), "utf-8")
    ran = run("inspect", model_folder(), "--rules", str(tmp_path))
    assert "AP301  rms_norm in LlamaRMSNorm ×7" in ran.out
    assert "`w.ndim == 2` does not hold" in ran.out


def test_a_folder_is_named_with_its_model_type(run: Run, model_folder: Folder) -> None:
    folder = model_folder()
    head = " ".join(run("inspect", folder).out.split())
    # embedding and head 512000, three layers of 590336, the last norm 256
    assert head.startswith(f"{folder} (llama) · LlamaForCausalLM · 2.28 M parameters traced in")


def test_version_and_help(run: Run) -> None:
    assert run("--version").out == f"autoport {__version__}\n"
    shown = run("inspect", "--help").out
    for option in ("--diff", "--json", "--rules", "--tp", "--target", "--prove", "--strict"):
        assert option in shown
    assert "autoport inspect qwen3" in shown


def test_help_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from neuron_autoport.cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print('heavy:', sorted({'torch', 'transformers', 'libcst'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "heavy: []"
    assert "inspect" in ran.stdout


def test_an_option_in_front_of_its_command_is_told_where_it_belongs(run: Run) -> None:
    ran = run("--json", "inspect", "llama")
    assert (ran.code, ran.out) == (2, "")
    assert "--json belongs behind its command: autoport inspect ... --json" in ran.err
    assert "No such option: --jsn" in run("--jsn", "inspect", "llama").err
