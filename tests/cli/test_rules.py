"""`autoport rules list`, `show` and `test`: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuron_autoport.rules.builtin import builtin_folder
from neuron_autoport.rules.library import load_rules
from tests.cli.conftest import Run
from tests.rules.test_examples import FUSED, GATED, OTHER, WRONG, gated, line_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "rules"
    made.mkdir()
    return made


def write(folder: Path, text: str, name: str = "mine") -> str:
    """A rule file of this text, its rule called as the file."""
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("rule: gated_mlp", f"rule: {name}"), encoding="utf-8")
    return str(path)


def columns(line: str) -> list[str]:
    """The cells of a line of the list: two spaces at least stand between them."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_list(run: Run, folder: Path) -> None:
    ran = run("rules", "list")
    assert (ran.code, ran.err) == (0, "")
    head, *lines = ran.out.splitlines()
    assert columns(head) == ["name", "role", "call", "from", "file"]
    first, second = zip(*[iter(lines)] * 2, strict=True).__next__()
    rule = load_rules()[0]
    assert columns(first)[0] == rule.name and second == f"    {rule.summary}"
    gated = lines.index("    act(gate(x)) * up(x), projected down") - 1
    assert columns(lines[gated]) == [
        "gated_mlp", "gated_mlp", "NF.mlp", "built in", "patterns/mlp/gated_mlp.yaml",
    ]  # fmt: skip
    write(folder, GATED)
    more = run("rules", "list", "--rules", str(folder))
    assert len(more.out.splitlines()) == len(ran.out.splitlines()) + 2
    (line,) = [x for x in more.out.splitlines() if x.startswith("mine ")]
    assert columns(line) == ["mine", "mine", "NF.mlp", "--rules", str(folder / "mine.yaml")]


def test_list_of_rules_of_a_project(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules of the working folder's pyproject.toml count in every command, and are told apart."""
    write(folder, gated([FUSED]), "gated_mlp")
    (folder / "pyproject.toml").write_text('[tool.autoport]\nrules = ["."]\n', encoding="utf-8")
    monkeypatch.chdir(folder)
    lines = run("rules", "list").out.splitlines()
    (line,) = [x for x in lines if x.startswith("gated_mlp ")]
    assert columns(line)[3:] == ["pyproject.toml", "gated_mlp.yaml"]
    shown = run("rules", "show", "gated_mlp").out
    assert shown.startswith(
        f"# gated_mlp.yaml ({folder / 'pyproject.toml'})\n"
    ) or shown.startswith(f"# {folder / 'gated_mlp.yaml'} ({folder / 'pyproject.toml'})\n")
    tested = run("rules", "test")
    assert tested.code == 2 and "autoport rules test --trust-remote-code" in tested.err
    report = json.loads(run("inspect", "llama", "--json").out)
    (rule,) = [r for r in report["rules"] if r["name"] == "gated_mlp"]
    assert rule["origin"] == str(folder / "pyproject.toml") and rule["replaces_builtin"]
    assert rule["sites"] == 32


def test_list_json(run: Run, folder: Path) -> None:
    write(folder, gated([FUSED], [OTHER]), "gated_mlp")
    rows = {
        r["name"]: r for r in json.loads(run("rules", "list", "--json", "--rules", str(folder)).out)
    }
    assert list(rows) == sorted(r.name for r in load_rules())
    assert rows["gated_mlp"] == {
        "name": "gated_mlp", "role": "gated_mlp", "summary": "act(gate(x)) * up(x), projected down",
        "call": "NF.mlp", "file": str(folder / "gated_mlp.yaml"), "builtin": False,
        "origin": "--rules", "replaces_builtin": True, "matches": 1, "rejects": 1,
    }  # fmt: skip
    assert rows["o_proj"]["builtin"] and rows["o_proj"]["matches"] >= 2


def test_show(run: Run, folder: Path) -> None:
    path = builtin_folder() / "mlp" / "gated_mlp.yaml"
    ran = run("rules", "show", "gated_mlp")
    assert (ran.code, ran.out) == (0, f"# {path}\n{path.read_text(encoding='utf-8')}")
    mine = write(folder, GATED)
    assert run("rules", "show", "mine", "--rules", str(folder)).out.startswith(
        f"# {mine} (--rules)\nrule: mine\n"
    )


def test_unknown_name(run: Run) -> None:
    ran = run("rules", "show", "gatedmlp")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no rule `gatedmlp`; did you mean `gated_mlp`?" in ran.err
    assert "autoport rules list" in ran.err


def test_all_built_in_rules(run: Run) -> None:
    ran = run("rules", "test")
    count = sum(len(r.examples) + len(r.rejects) for r in load_rules())
    rules = len(load_rules())
    said = f"{count} examples of {rules} rules: 0 missing, 0 noisy, 0 failed\n"
    assert (ran.code, ran.out, ran.err) == (0, said, "")


def test_one_file(run: Run) -> None:
    ran = run("rules", "test", str(builtin_folder() / "norm" / "rms_norm_weightless.yaml"))
    assert ran.code == 0
    assert ran.out.endswith(" examples of 1 rule: 0 missing, 0 noisy, 0 failed\n")


def test_missing_and_noisy(run: Run, folder: Path) -> None:
    text = gated([OTHER, FUSED], [FUSED.replace("class MLP", "class Noisy")])
    path = write(folder, text)
    write(folder, GATED, "bare")
    ran = run("rules", "test", str(folder), "--trust-remote-code")
    assert (ran.code, ran.err) == (1, "")
    missing, reason, noisy, because, bare, count = ran.out.splitlines()
    first = text[: text.index("class MLP")].count("\n") + 1
    assert missing.split() == ["missing", f"{path}:{first}", "mine"]
    assert reason.strip().startswith("AP210: ")
    assert noisy.split() == ["noisy", f"{path}:{line_of(text, 'class Noisy')}", "mine"]
    assert because.strip() == "fused, and should not be: a test says so"
    assert bare == "without examples: bare"
    assert count == "3 examples of 1 rule: 1 missing, 1 noisy, 0 failed"


@pytest.mark.parametrize(
    ("text", "code", "count"),
    [
        (gated([FUSED]), 0, "1 example of 1 rule: 0 missing, 0 noisy, 0 failed"),
        (gated([FUSED], text=WRONG), 3, "0 missing, 0 noisy, 1 failed"),
        (gated([OTHER], [FUSED], text=WRONG), 3, "1 missing, 1 noisy, 1 failed"),
        (gated(["class M(nm.Module): ...\n"]), 2, "0 missing, 0 noisy, 0 failed, 1 broken"),
        (gated([OTHER, "class M(nm.Module): ...\n"]), 2, "1 missing, 0 noisy, 0 failed, 1 broken"),
        (GATED, 0, "0 examples of 0 rules: 0 missing, 0 noisy, 0 failed"),
    ],
)
def test_exit_codes(run: Run, folder: Path, text: str, code: int, count: str) -> None:
    ran = run("rules", "test", write(folder, text), "--trust-remote-code")
    assert ran.code == code
    assert ran.out.splitlines()[-1].endswith(count)


def test_code_of_others_runs_only_when_asked(run: Run, folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = write(folder, gated([f"open({str(mark)!r}, 'w').close()\n{FUSED}"]))
    for arguments in (["test", path], ["test", "--rules", str(folder)]):
        ran = run("rules", *arguments)
        assert (ran.code, ran.out) == (2, "")
        words = " ".join(arguments)
        assert f"autoport rules {words} --trust-remote-code" in ran.err and path in ran.err
    run("rules", "list", "--rules", str(folder))
    run("rules", "show", "mine", "--rules", str(folder))
    assert run("inspect", "gpt2", "--rules", str(folder)).code == 0
    assert not mark.exists()
    assert run("rules", "test", path, "--trust-remote-code").code == 0
    assert mark.exists()


@pytest.mark.parametrize("name", ["", "nothing"])
def test_nothing_to_test(run: Run, folder: Path, name: str) -> None:
    ran = run("rules", "test", str(folder / name))
    assert (ran.code, ran.out) == (2, "")
    assert ("no rule files" if not name else "there is neither a rule file") in ran.err


def test_the_nearest_rule_is_named(run: Run) -> None:
    ran = run("rules", "test", "gated_mpl")
    assert (ran.code, ran.out) == (2, "")
    assert "nor a rule `gated_mpl`; did you mean `gated_mlp`?" in ran.err


def test_a_file_is_no_folder_of_rules(run: Run, folder: Path) -> None:
    ran = run("rules", "list", "--rules", write(folder, GATED))
    assert (ran.code, ran.out) == (2, "")
    assert "is a file, not a folder of rules" in ran.err and f"try: name {folder}\n" in ran.err
