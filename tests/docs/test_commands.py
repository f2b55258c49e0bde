"""Every command on every page is run, or is in the list of those that are not, with the reason.

A fence `console` holds commands after `$`, and below each what its output must have, line by line; `exit=2` on its
first line is the exit code. Commands in the text are run with their capital words filled in. Pages that tell a story
are followed by tests of their own; what takes whole engines is run by tests/hosts/vllm/test_documented.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from neuron_autoport.cli.app import app
from tests.cli.conftest import SMALL
from tests.docs.pages import (
    NOT_RUN,
    PAGES,
    ROOT,
    SERVED,
    consoles,
    mentioned,
    recipe,
    squeezed,
)

FOLLOWED = {
    "write-a-rule.md": "tests/docs/test_write_a_rule.py",
    "kernels.md": "tests/kernels/test_docs_kernels.py",
}
ENV = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": None}
RUN = [
    (page.name, *found)
    for page in PAGES
    if page.name not in FOLLOWED
    for found in consoles(page)
    if not found[1].startswith(("make ", "vllm "))
]  # fmt: skip
# Commands of the text with capital words, and what they are run as, in a folder with `model` and `mine.py`.
FILLED = {
    "autoport diff A B": "autoport diff llama model",
    "autoport explain CODE": "autoport explain AP201",
    "autoport explain CODE|RULE|WORD": "autoport explain AP201",
    "autoport explain NAME": "autoport explain site",
    "autoport explain RULE": "autoport explain gated_mlp",
    "autoport explain WORD": "autoport explain where",
    "autoport inspect DIR --json | jq -r '.classes[].refusals[] | \"\\(.code) \\(.rule): \\(.message)\"'":
        "autoport inspect model --json | jq -r '.classes[].refusals[] | \"\\(.code) \\(.rule): \\(.message)\"'",
    "autoport inspect FILE.py:CLASS --input 2,8,64":
        "autoport inspect mine.py:MLP --input 2,8,64 --trust-remote-code",
    "autoport inspect FILE.py:CLASS --input 2,8,64 --rules DIR --diff":
        "autoport inspect mine.py:MLP --input 2,8,64 --rules rules --diff --trust-remote-code",
    "autoport inspect FILE.py:CLASS --input 2,8,64 --trust-remote-code":
        "autoport inspect mine.py:MLP --input 2,8,64 --trust-remote-code",
    "autoport inspect FILE.py:CLASS --input 2,8,64 --trust-remote-code --json":
        "autoport inspect mine.py:MLP --input 2,8,64 --trust-remote-code --json",
    "autoport inspect FOLDER": "autoport inspect model",
    "autoport inspect MODEL": "autoport inspect model",
    "autoport inspect MODEL --json": "autoport inspect model --json",
    "autoport inspect MODEL --target trn2 --tp N --strict":
        "autoport inspect model --target trn2 --tp 2 --strict",
    "autoport inspect MODEL --tp N": "autoport inspect model --tp 2",
    "autoport inspect TYPE": "autoport inspect llama",
    "autoport kernels QUERY --for MODEL": "autoport kernels attention --for model",
    "autoport port MODEL -o DIR": "autoport port model -o made",
    "autoport rules new NAME --from FILE.py:CLASS":
        "autoport rules new swiglu --from mine.py:MLP --input 2,8,64 -o rules --trust-remote-code",
    "autoport rules show NAME": "autoport rules show gated_mlp",
    "autoport rules test FILE --trust-remote-code":
        "autoport rules test rules/relu.yaml --trust-remote-code",
}  # fmt: skip
# What `make test`, which continuous integration runs, must run.
CI = [
    "ruff check", "ruff format --check", "mypy neuron_autoport", 'pytest -m "not serve"', "pytest -m serve",
]  # fmt: skip
MINE = """import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))
"""
RULE = """rule: relu
summary: relu by itself
match: y = relu(x)
refuse: an example
examples:
  matches:
    - |
      class M(nn.Module):
          def forward(self, x):
              return torch.relu(x)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a model, a file with a module, a folder of rules."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "relu.yaml").write_text(RULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("page", "code", "command", "output"), RUN, ids=[f"{p}: {c}" for p, _, c, _ in RUN]
)
def test_a_command_does_what_the_page_says(
    here: Path, page: str, code: int, command: str, output: list[str]
) -> None:
    words = shlex.split(command)
    assert words[0] == "autoport", command
    result = CliRunner().invoke(app, words[1:], env=ENV)
    said = squeezed(result.stdout + result.stderr)
    assert result.exit_code == code, said
    for line in output:
        assert squeezed(line) in said, f"{line}\n---\n{said}"


IN_TEXT = sorted(set().union(*(mentioned(p) for p in PAGES)))
SYNOPSES = [c for c in IN_TEXT if c.startswith("autoport ") and " [--" in c]
OURS = [c for c in IN_TEXT if c.startswith("autoport ") and c not in (*SERVED, *SYNOPSES)]


@pytest.mark.parametrize("command", OURS)
def test_a_command_of_the_text_runs(here: Path, command: str) -> None:
    filled = FILLED.get(command, command)
    assert filled == command or fits(command, filled), filled
    assert not re.search(r"\b[A-Z]{4,}\b", filled), f"not filled in: {filled}"
    first, _, rest = filled.partition(" | ")
    words = shlex.split(first)[1:]
    if needs_more(words):  # the name of a command
        words.append("--help")
    result = CliRunner().invoke(app, words, env=ENV)
    said = result.stdout + result.stderr
    assert result.exit_code == 0, said
    if rest and shutil.which("jq"):
        jq = subprocess.run(
            shlex.split(rest), input=result.stdout, capture_output=True, text=True, check=False
        )
        assert jq.returncode == 0, jq.stderr


def fits(command: str, filled: str) -> bool:
    """Is it the command, but for capital words and the permission to run a file?"""
    made = shlex.split(filled.removesuffix(" --trust-remote-code"))
    for word in shlex.split(command.removesuffix(" --trust-remote-code")):
        while made and not re.search("[A-Z]", word) and made[0] != word:
            made.pop(0)  # what the text leaves out: `rules new NAME --from FILE.py:CLASS`
        if not made or (made.pop(0) != word and not re.search("[A-Z]", word)):
            return False
    return True


def needs_more(words: list[str]) -> bool:
    """Is it a command without the arguments it must have?"""
    return " ".join(words) in {"bench", "diff", "inspect", "port", "validate", "rules new"}


def test_a_synopsis_has_only_options_that_there_are() -> None:
    for command in SYNOPSES:
        name, given = command.split()[1], re.findall(r"\[(--[\w-]+)", command)
        said = CliRunner().invoke(app, [name, "--help"], env=ENV).stdout
        assert given and all(f"{option} " in said for option in given), command


def test_all_others_are_run_elsewhere_or_said_not_to_be() -> None:
    """Words such as `vllm serve` alone name a program; `make` is looked at below."""
    fences = {c for p in PAGES if p.name not in FOLLOWED for _, c, _ in consoles(p)}
    known = {*SERVED, *NOT_RUN}
    programs = {"vllm serve", "vllm bench", "python -m benchmarks.models_page"}
    for command in {*IN_TEXT, *fences}:
        if not command.startswith(("autoport ", "make ")):
            assert command in known or command in programs, command
    text = (ROOT / "tests/hosts/vllm/test_documented.py").read_text(encoding="utf-8")
    assert "from tests.docs.pages import SERVED" in text
    assert set(NOT_RUN) <= {*IN_TEXT, *fences}, "no page has it any more"


def test_extras_that_pages_install_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {e for c in NOT_RUN for e in re.findall(r"autoport\[(\w+)\]", c)}
    assert extras and extras <= set(project["optional-dependencies"])


def test_continuous_integration_runs_make_test_and_that_all_of_it() -> None:
    assert re.search(r"^make test ", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)
    said = recipe("test")
    for words in CI:
        assert words in said


def test_make_targets_on_pages_are_run_here_or_elsewhere(tmp_path: Path) -> None:
    fences = {c for p in PAGES for _, c, _ in consoles(p)}
    found = {c for c in {*IN_TEXT, *fences} if c.startswith("make ")}
    ran = {"make coverage", "make pages"}  # below
    by_ci = {"make test", "make setup"}  # the set-up comes before all else: `recipe` sees to it
    assert found <= ran | by_ci | {"make docs", *SERVED, *NOT_RUN}  # docs: test_site.py


def test_make_pages_makes_the_pages_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    done = shell(recipe("pages"), tmp_path)
    assert done.returncode == 0, done.stderr
    made = sorted((tmp_path / "docs").iterdir())
    assert [p.name for p in made] == ["codes.md", "models.md", "rules.md", "words.md"]
    for page in made:
        assert page.read_bytes() == (ROOT / "docs" / page.name).read_bytes(), page.name


def test_make_coverage_with_one_type(tmp_path: Path) -> None:
    done = shell(f"{recipe('coverage')} gpt2 --no-vllm --jobs 1", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["architectures"], last["proved"], last["wrong"]) == (1, 1, 0)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-ec", command], cwd=folder, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
    )  # fmt: skip


@pytest.mark.parametrize(("page", "test"), FOLLOWED.items())
def test_pages_that_are_followed_have_their_test(page: str, test: str) -> None:
    assert page in (ROOT / test).read_text(encoding="utf-8")
