"""docs/write-a-rule.md, done as a reader does it: its files are written and its commands run, in order.

A fence `python mine.py`, `yaml rules/x.yaml` or `toml pyproject.toml` is a file. A fence `console` holds commands
after `$`, and below each what its output must have, line by line; `exit=3` is the exit code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from neuron_autoport.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "write-a-rule.md"
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str, str]]:
    """(language, rest of the first line, content) of every fence."""
    text = PAGE.read_text(encoding="utf-8")
    return [(m[1], m[2].strip(), m[3]) for m in FENCE.finditer(text)]


def commands(content: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines below it."""
    for part in content.split("$ ")[1:]:
        command, *output = part.rstrip("\n").split("\n")
        yield command, [line for line in output if line.strip()]


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_page_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOPORT_RULES", raising=False)
    env = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": None}
    ran = 0
    for language, rest, content in steps():
        if language != "console":
            if rest:
                path = tmp_path / rest
                path.parent.mkdir(exist_ok=True)
                path.write_text(content, encoding="utf-8")
            continue
        wanted = int(rest.removeprefix("exit=") or 0)
        for command, output in commands(content):
            words = shlex.split(command)
            assert words[0] == "autoport", command
            result = CliRunner().invoke(app, words[1:], env=env)
            said = result.stdout + result.stderr
            assert result.exit_code == wanted, f"{command}\n{said}"
            for line in output:
                assert squeezed(line) in squeezed(said), f"{command}\n{line}\n---\n{said}"
            ran += 1
    assert ran >= 18


def test_the_shown_first_version_is_the_file_without_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (mine,) = [content for language, _, content in steps() if language == "python"]
    (tmp_path / "mine.py").write_text(mine, encoding="utf-8")
    consoles = (part for language, _, part in steps() if language == "console")
    command = next(
        c
        for part in consoles
        for c, _ in commands(part)
        if c.startswith("autoport rules new relu_gate")
    )
    assert CliRunner().invoke(app, shlex.split(command)[1:]).exit_code == 0
    shown = next(content for language, rest, content in steps() if language == "yaml" and not rest)
    written = (tmp_path / "rules" / "relu_gate.yaml").read_text(encoding="utf-8").splitlines()
    assert [line for line in written if not line.lstrip().startswith("#")] == shown.splitlines()


def test_nothing_else_looks_like_a_command() -> None:
    """Commands outside of console fences would not be tried; only `vllm serve` is spoken of."""
    text = FENCE.sub("", PAGE.read_text(encoding="utf-8"))
    named = set(re.findall(r"`([^`\n]+)`", text))
    words = {n for n in named if n.startswith(("autoport ", "vllm ", "pip ", "python "))}
    allowed = {"autoport explain", "autoport explain proof", "autoport explain WORD", "vllm serve"}
    assert words <= allowed
