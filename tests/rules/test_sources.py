"""Where rules come from: the order of sources, what each is named by, and what is wrong with one."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from neuron_autoport import pipeline
from neuron_autoport.errors import RuleError
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.port import port_model
from neuron_autoport.prove.model import Proof
from neuron_autoport.report.summary import own_rule_lines
from neuron_autoport.rewrite.emit import Generated
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.rule import Rule
from neuron_autoport.rules.sources import (
    OPTION,
    VARIABLE,
    load_library,
    origin_of,
    replaces_builtin,
    rule_sources,
)
from tests.helpers import small_config
from tests.rules.test_library import write

POINT = "[neuron_autoport.rules]\n{name} = {value}\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with no pyproject.toml that names rules above it, and nothing in the environment."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "pyproject.toml").write_text("[tool.autoport]\n", encoding="utf-8")
    monkeypatch.chdir(here)
    monkeypatch.delenv(VARIABLE, raising=False)
    return here


def by_name(options: tuple[Path, ...] = ()) -> dict[str, Rule]:
    return {r.name: r for r in load_library(options)}


def project(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def package(folder: Path, name: str, *, point: str = "rules", value: str | None = None) -> Path:
    """An installed package of rules: its folder, and the metadata that names it."""
    for i in range(name.count(".") + 1):
        part = folder / "/".join(name.split(".")[: i + 1])
        part.mkdir(parents=True, exist_ok=True)
        mark = folder / "it_ran"
        (part / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\n", encoding="utf-8")
    info = folder / f"{name.replace('.', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: the-{point}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINT.format(name=point, value=value or name))
    return folder / name.replace(".", "/")


def test_without_any_of_the_users_there_are_the_built_in_rules() -> None:
    assert [r.path for r in load_library()] == [r.path for r in load_rules()]
    assert [s.name for s in rule_sources()] == ["built in"]


def test_the_order(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source replaces the rule of the one before it: five sources, one name."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    folders = {
        "package the-rules": package(tmp_path / "site", "their_rules"),
        str(elsewhere / "pyproject.toml"): elsewhere / "own",
        VARIABLE: tmp_path / "env",
        OPTION: tmp_path / "opt",
    }
    project(elsewhere, '[tool.autoport]\nrules = ["own"]\n')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "env"))
    for number, folder in enumerate(folders.values()):
        for name in ("gated_mlp", *(f"r{i}" for i in range(number, 4))):
            write(folder, name, summary=f"from {number}")
    found = by_name((tmp_path / "opt",))
    assert found["gated_mlp"].summary == "from 3" and origin_of(found["gated_mlp"]) == OPTION
    assert replaces_builtin(found["gated_mlp"]) and not replaces_builtin(found["r3"])
    # r0 is in the first folder only, r1 in the first two, ...
    assert [found[f"r{i}"].summary for i in range(4)] == [f"from {i}" for i in range(4)]
    assert [origin_of(found[f"r{i}"]) for i in range(4)] == list(folders)
    assert origin_of(found["o_proj"]) == "built in" and not replaces_builtin(found["o_proj"])


def test_folders_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", "mine", "first")
    write(tmp_path / "b", "mine", "later")
    monkeypatch.setenv(VARIABLE, os.pathsep.join(("", str(tmp_path / "a"), str(tmp_path / "b"))))
    assert by_name()["mine"].summary == "later"
    monkeypatch.setenv(VARIABLE, "")
    assert "mine" not in by_name()


def test_the_nearest_pyproject_with_a_table_counts(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = elsewhere / "pkg" / "deep"
    deep.mkdir(parents=True)
    write(elsewhere / "own", "outer")
    write(elsewhere / "pkg" / "more" / "inner", "inner")
    write(tmp_path / "else", "absolute")
    project(elsewhere, '[tool.autoport]\nrules = ["own"]\n')
    project(elsewhere / "pkg", '[project]\nname = "pkg"\n[tool.ruff]\n')
    monkeypatch.chdir(deep)
    assert "outer" in by_name()
    project(elsewhere / "pkg", f'[tool]\nautoport.rules = ["more", "{tmp_path / "else"}"]\n')
    assert {"inner", "absolute"} <= set(by_name()) and "outer" not in by_name()


FAULTS = {
    "not TOML": ("[tool.autoport\n", "not TOML", ":1:15"),
    "no table": ("[tool]\nautoport = 3\n", "`tool.autoport` must be a table", ":2"),
    "no list": ('[project]\nname = "x"\n[tool.autoport]\nrules = "own"\n', "must be a list of folders", ":4"),
    "no text": ("[tool.autoport]\nrules = [3]\n", "must be a list of folders", ":2"),
    "unknown key": ('[tool.autoport]\nrule = ["own"]\n', "unknown key `rule` of [tool.autoport]; did you", ":2"),
    "not there": ('[tool.autoport]\n\nrules = ["none"]\n', "none does not exist", ":3"),
    "empty": ('[tool.autoport]\nrules = ["bare"]\n', "no rule files (*.yaml) in", ":2"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_wrong_pyproject(elsewhere: Path, case: str) -> None:
    text, message, place = FAULTS[case]
    (elsewhere / "bare").mkdir()
    path = project(elsewhere, text)
    with pytest.raises(RuleError) as caught:
        load_library()
    assert message in caught.value.what
    assert str(caught.value.where).endswith(f"{path}{place}") and caught.value.next_step


def test_a_pyproject_that_is_not_utf8(elsewhere: Path) -> None:
    (elsewhere / "pyproject.toml").write_bytes(b"[tool.autoport]\n# \xff\n")
    with pytest.raises(RuleError, match=r"pyproject\.toml is not UTF-8"):
        load_library()


def test_a_package_is_found_and_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    folder = package(site, "outer.inner.rules")
    write(folder, "theirs")
    write(folder / "below", "deeper")
    monkeypatch.syspath_prepend(str(site))
    found = by_name()
    assert origin_of(found["theirs"]) == origin_of(found["deeper"]) == "package the-rules"
    assert not (site / "it_ran").exists()
    assert not {m for m in sys.modules if m.split(".")[0] == "outer"}


@pytest.mark.parametrize("value", ["gone", "their_rules.gone", "their_rules:attr", "json.decoder"])
def test_a_package_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    package(tmp_path / "site", "their_rules", value=value)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(RuleError) as caught:
        load_library()
    assert caught.value.what == f"there is no package folder `{value}`"
    assert str(caught.value.where) == f"entry point `rules = {value}` of the-rules"
    assert "pip uninstall the-rules" in str(caught.value.next_step)


def test_a_folder_that_is_not_there_is_named_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(RuleError) as caught:
        load_library()
    assert caught.value.where == f"{tmp_path / 'gone'}, named by AUTOPORT_RULES"


def test_all_wrong_files_of_a_folder_are_told_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    write(folder, "good")
    for name in ("bad", "worse"):
        (folder / f"{name}.yaml").write_text(f"rule: {name}\n", encoding="utf-8")
    (folder / "again.yaml").write_text(write(tmp_path / "x", "good").read_text(), encoding="utf-8")
    (folder / "short.yml").write_text("", encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        load_library((folder,))
    said = caught.value.text()
    assert said.startswith("4 rule files are wrong.\n")
    for part in ("bad.yaml:1:1: field `match`", "worse.yaml:1:1: field `match`", "ends in .yaml"):
        assert part in said
    assert "two files of one folder have a rule `good`" in said
    assert f"{folder / 'again.yaml'} and {folder / 'good.yaml'}" in said


def test_a_rule_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    with pytest.raises(RuleError, match="cannot be read: Is a directory"):
        load_library((tmp_path,))


def test_what_takes_no_options_takes_them_too(elsewhere: Path) -> None:
    """`proved_port` without rules, as `vllm serve` calls it, in a process started in this folder."""
    write(elsewhere / "own", "gated_mlp", "mine")
    project(elsewhere, '[tool.autoport]\nrules = ["own"]\n')
    with (
        mock.patch.object(pipeline, "port_model", side_effect=KeyError) as used,
        pytest.raises(KeyError),
    ):
        pipeline.proved_port(small_config("llama"))
    rules = {rule.name: rule.summary for rule in used.call_args.args[1]}
    assert rules["gated_mlp"] == "mine" and set(rules) == {r.name for r in load_rules()}


def test_the_start_up_lines_name_the_users_rules(elsewhere: Path) -> None:
    """What the vLLM host logs, and nothing for rules that are built in."""
    text = next(r for r in load_rules() if r.name == "gated_mlp").text
    (elsewhere / "own").mkdir()
    path = elsewhere / "own" / "mine.yaml"
    path.write_text(text.replace("rule: gated_mlp", "rule: my_mlp"), encoding="utf-8")
    project(elsewhere, '[tool.autoport]\nrules = ["own"]\n')
    port = port_model(small_config("llama"), (*load_rules(), by_name()["my_mlp"]))
    proved = ProvedPort(port, Generated(path, "", {}), Proof((), None, (), ""), 0.0, False)
    assert own_rule_lines(proved) == []  # of two rules that say the same the first by name is used
    port = port_model(small_config("llama"), [by_name()["my_mlp"]])
    where = elsewhere / "pyproject.toml"
    assert own_rule_lines(replace(proved, port=port)) == [
        f"rule my_mlp: 2 sites, {path} (from {where})"
    ]
