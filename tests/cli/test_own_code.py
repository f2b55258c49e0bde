"""Models from code of their own: inspected, proved and ported like any other, and never run unasked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoConfig

from neuron_autoport import cache
from neuron_autoport.export.check import load_package, model_class
from tests.cli.conftest import Run
from tests.models.own_folders import own_folder, plain_folder

TRUST = "--trust-remote-code"


@pytest.fixture(autouse=True)
def own_modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers keeps and imports code below this test's folder, as in a fresh process."""
    folder = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    others = [p for p in sys.path if not (Path(p) / "transformers_modules").is_dir()]
    monkeypatch.setattr(sys, "path", others)
    before = _own_modules()
    for name in before:
        del sys.modules[name]
    yield
    for name in _own_modules():
        del sys.modules[name]
    sys.modules.update(before)


def _own_modules() -> dict[str, ModuleType]:
    return {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "transformers_modules"}


@pytest.mark.parametrize(
    ("name", "begins"),
    [("plain", str.isdigit), ("own-code.1", str.isdigit), ("own-code.2", str.isalpha)],
)
def test_own_code_is_proved(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, begins: object
) -> None:
    """Whatever the digest in the dotted name of its code begins with; a dash and a dot are in it as words."""
    monkeypatch.setenv("AUTOPORT_CACHE", str(tmp_path / "cache"))
    assert callable(begins)
    folder = own_folder(tmp_path / name, begins)
    ran = run("inspect", str(folder), "--prove", TRUST)
    assert ran.code == 0, ran.err
    assert "logits" in ran.out and "dropped" not in ran.out and "AP7" not in ran.out
    files = list(cache.cache_folder("generated").glob("*.py"))
    texts = [f.read_text(encoding="utf-8") for f in files]
    assert texts and all('import_module("transformers_modules.' in t for t in texts)
    assert "AP7" not in run("inspect", str(folder), "--prove", TRUST).out  # the proof that was kept


def test_own_code_is_ported(run: Run, tmp_path: Path) -> None:
    """The package carries the source; the configuration's class stays with the model, which is said."""
    folder, target = own_folder(tmp_path / "own-code.1", str.isdigit), tmp_path / "neuron_own"
    ran = run("port", str(folder), "-o", str(target), TRUST)
    assert ran.code == 0, ran.err
    texts = {p.name: p.read_text(encoding="utf-8") for p in target.iterdir() if p.is_file()}
    assert not any("transformers_modules" in text for text in texts.values())
    for file in ("README.md", "__init__.py", "config.py"):
        assert TRUST in texts[file]
    assert "`OwnConfig`" in texts["README.md"] and "OwnConfig" not in texts["model.py"]
    assert "auto_map" not in texts["config.py"]  # a hub id puts its name before each entry
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    made = model_class(load_package(target)).from_configs(config)
    assert type(made).__name__ == "NeuronOwnForCausalLM"


def test_p16_a_model_without_base_class_is_inspected_and_says_what_stops_port(
    run: Run, tmp_path: Path
) -> None:
    folder = str(plain_folder(tmp_path / "no-base.1", tmp_path / "ran"))
    ran = run("inspect", folder, "--prove", TRUST)
    assert ran.code == 0, ran.err
    assert "NF.mlp" in ran.out and "NK.layer_norm" in ran.out and "passed" in ran.out
    assert "traced in bfloat16" in ran.out
    for text in (ran.out, run("inspect", folder, "--buckets", "128", TRUST).out):
        assert "AP412" in text and "PreTrainedModel" in text
    ported = run("port", folder, "-o", str(tmp_path / "out"), TRUST)
    assert ported.code == 2 and "AP412" in ported.err and "PreTrainedModel" in ported.err
    assert "try: derive it" in ported.err and not (tmp_path / "out").exists()
    table = json.loads(run("inspect", folder, "--buckets", "128", "--json", TRUST).out)
    assert "AP412" in table["serving"]["unserved"]
    plain = json.loads(run("inspect", folder, "--json", TRUST).out)
    stopped = "no base class of transformers (PreTrainedModel)"
    assert (
        plain["model"]["unserved"].startswith("AP412: ") and stopped in plain["model"]["unserved"]
    )
    assert plain["serving"] is None
    told = [
        x
        for x in run("inspect", folder, "--format", "github", TRUST).out.splitlines()
        if stopped in x
    ]
    assert len(told) == 1 and told[0].startswith("::warning title=autoport AP412::")


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--prove"], ["port", "-o", "out"]])
def test_without_the_flag_nothing_is_run(run: Run, tmp_path: Path, command: list[str]) -> None:
    folder = plain_folder(tmp_path / "gpt", tmp_path / "ran")
    refused = run(command[0], str(folder), *command[1:])
    assert refused.code == 2 and TRUST in refused.err and "comes with its own code" in refused.err
    assert not (tmp_path / "ran").exists()


MISTAKES = {
    "more arguments": ({"more": ", depth"}, ["configuration alone", "depth", "FILE.py:CLASS"]),
    "a function": ({"named": "make"}, ["no torch.nn.Module", "auto_map"]),
    "not there": ({"named": "GTP"}, ["GTP", "cannot be built"]),
    "its code fails": ({"more": ", depth=1 / 0"}, ["modeling_gpt.py:", "ZeroDivisionError"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_own_code_is_explained(run: Run, tmp_path: Path, case: str) -> None:
    changes, words = MISTAKES[case]
    folder = plain_folder(tmp_path / "gpt", tmp_path / "ran", **changes)
    ran = run("inspect", str(folder), TRUST)
    assert ran.code == 2 and all(word in ran.err for word in words), ran.err
    assert run("port", str(folder), "-o", str(tmp_path / "out"), TRUST).code == 2


@pytest.mark.parametrize("command", ["validate", "bench"])
def test_without_base_class_nothing_is_run_in_an_engine(
    run: Run, tmp_path: Path, command: str
) -> None:
    ran = run(command, str(plain_folder(tmp_path / "plain", tmp_path / "ran")), TRUST)
    assert ran.code == 2 and "AP412: " in ran.err and "no base class of transformers" in ran.err
    assert "PreTrainedModel" in ran.err and "Traceback" not in ran.err
