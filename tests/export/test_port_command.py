"""`autoport port MODEL -o DIR`: what it writes, and that a failed run leaves nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_autoport.export import runtime, write
from neuron_autoport.rules.builtin import builtin_folder
from tests.cli.conftest import SMALL, Run
from tests.export.packages import Exported

TINY = {**SMALL, "num_hidden_layers": 2, "vocab_size": 128}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return folder


def test_a_package_is_written(run: Run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "neuron_small"
    ran = run("port", str(model), "-o", str(target))
    assert ran.code == 0, ran.err
    assert "NeuronLlamaForCausalLM, 6 files" in ran.out
    assert "neuron_small:register" in (target / "pyproject.toml").read_text(encoding="utf-8")
    readme = (target / "README.md").read_text(encoding="utf-8")
    for text in (
        "| hidden_size | `256` |",
        "| LlamaMLP | gated_mlp | `NF.mlp` |",
        "flash_attention",
    ):
        assert text in readme
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "neuron_small"]


def test_an_existing_folder_stays(run: Run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / "mine.txt").write_text("edited", encoding="utf-8")
    ran = run("port", str(model), "-o", str(target))
    assert ran.code == 2 and "exists already" in ran.err and "--force" in ran.err
    assert [p.name for p in target.iterdir()] == ["mine.txt"]
    forced = run("port", str(model), "-o", str(target), "--force")
    assert forced.code == 0, forced.err
    assert "mine.txt" not in {p.name for p in target.iterdir()}
    assert (target / "model.py").is_file()


def test_a_model_that_cannot_be_hosted_leaves_nothing(run: Run, tmp_path: Path) -> None:
    ran = run("port", "mamba2", "-o", str(tmp_path / "out"))
    assert ran.code == 2 and "carries information from token to token" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old package stays where a new one cannot be written."""
    target = tmp_path / "there"
    target.mkdir()
    (target / "mine.txt").write_text("edited", encoding="utf-8")
    written: list[str] = []

    def full(self: Path, text: str, **_: Any) -> int:
        written.append(self.name)
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        return len(text)

    monkeypatch.setattr(write.Path, "write_text", full)
    with pytest.raises(write.OutputError, match="No space left on device"):
        write.write_files({f"{i}.py": "" for i in range(4)}, target)
    assert len(written) == 3
    assert [p.name for p in target.iterdir()] == ["mine.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "there"]


def test_a_place_that_cannot_hold_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(write.OutputError, match="cannot be written"):
        write.write_files({"a.py": ""}, tmp_path / "file" / "out")
    assert (tmp_path / "file").is_file()


def test_rules_of_ones_own(run: Run, model: Path, tmp_path: Path) -> None:
    """A rule of the user that matches as much as a built-in one and comes first by its name."""
    rules = tmp_path / "rules"
    rules.mkdir()
    text = (builtin_folder() / "norm" / "rms_norm.yaml").read_text(encoding="utf-8")
    (rules / "a_norm.yaml").write_text(
        re.sub(r"^rule: rms_norm$", "rule: a_norm", text, flags=re.MULTILINE), encoding="utf-8"
    )
    target = tmp_path / "mine"
    ran = run("port", str(model), "-o", str(target), "--rules", str(rules))
    assert ran.code == 0, ran.err
    source = (target / "model.py").read_text(encoding="utf-8")
    assert "# autoport: a_norm" in source and "# autoport: rms_norm" not in source
    assert "a_norm" in source.splitlines()[2]


def test_a_rule_left_out(run: Run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "less"
    ran = run("port", str(model), "-o", str(target), "--without", "gated_mlp")
    assert ran.code == 0, ran.err
    source = (target / "model.py").read_text(encoding="utf-8")
    assert "gated_mlp" not in source
    assert "NF.mlp(" not in source and "NF.qkv_proj(" in source


def test_the_page_about_it(exported: Callable[[str], Exported]) -> None:
    """What docs/port.md shows of a package and says of the runtime is there; its command is run elsewhere."""
    page = (Path(__file__).parents[2] / "docs" / "port.md").read_text(encoding="utf-8")
    source = exported("llama").text()
    quoted = page.partition("```python\n")[2].partition("```")[0].strip().splitlines()
    assert all(line in source for line in quoted)
    for name in re.findall(r"^\| `(\w+)\(", page, re.MULTILINE):
        assert hasattr(runtime, name), name
