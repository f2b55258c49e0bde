"""Every command on every page: those in `console` fences are run here, all others are run by a named test.

A fence `console` holds commands after `$`, and below each what its output must have, line by line; `exit=2` on its
first line is the exit code. Pages that tell a story are followed by tests of their own.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from neuron_autoport.cli.app import app

ROOT = Path(__file__).parents[2]
FOLLOWED = {
    "write-a-rule.md": "tests/docs/test_write_a_rule.py",
    "kernels.md": "tests/kernels/test_docs_kernels.py",
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```console([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# What is not run here: a command's beginning, the test that runs it, and words it must have.
ELSEWHERE = {
    "make demo": ("tests/tools/test_demo.py", "from tools import demo"),
    "make test": (".ci/run", "make test"),
    "make setup": ("tests/tools/test_setup_env.py", "setup"),
    "make pages": ("tests/cli/test_explain.py", "make pages"),
    "make served": ("tests/hosts/vllm/test_served.py", "served"),
    "make docs": ("tests/docs/test_site.py", "mkdocs"),
    "make coverage": ("tests/test_coverage.py", "benchmarks"),
    "python -m benchmarks.coverage": ("tests/test_coverage.py", "benchmarks"),
    "vllm serve": ("tests/hosts/vllm/test_real_models.py", "neuron-transformers"),
    ".venv/bin/vllm serve": ("tests/hosts/vllm/test_real_models.py", "neuron-transformers"),
    "vllm bench": ("tests/hosts/vllm/test_bench.py", "bench"),
    "autoport validate": ("tests/cli/test_validate.py", "validate"),
    "autoport inspect llama --json | jq": ("tests/cli/test_json.py", "--json"),
    "autoport inspect DIR --json | jq": ("tests/cli/test_json.py", "--json"),
}
# A command in backticks or at the start of an indented line.
MENTIONED = re.compile(
    r"`((?:autoport|vllm|make) [^`\n]+)`|^(?:    |\$ )((?:autoport|vllm) .+)$", re.M
)


def consoles(page: Path) -> Iterator[tuple[int, str, list[str]]]:
    """(exit code, command, lines below it) of a page's console fences."""
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        code = int(match[2].strip().removeprefix("exit=") or 0)
        for part in textwrap.dedent(match[3]).split("$ ")[1:]:
            command, *output = part.rstrip("\n").split("\n")
            yield code, command.split("  #")[0].strip(), [x for x in output if x.strip()]


def squeezed(text: str) -> str:
    return " ".join(text.split())


def elsewhere(command: str) -> bool:
    """Is it one that another test runs? That test must be there, and be about it."""
    for start, (file, words) in ELSEWHERE.items():
        if command.startswith(start):
            assert words in (ROOT / file).read_text(encoding="utf-8"), (command, file)
            return True
    return False


RUN = [
    (page.name, *found)
    for page in PAGES
    if page.name not in FOLLOWED
    for found in consoles(page)
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "code", "command", "output"), RUN, ids=[f"{p}: {c}" for p, _, c, _ in RUN]
)
def test_a_command_does_what_the_page_says(
    page: str,
    code: int,
    command: str,
    output: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if elsewhere(command):
        return
    words = shlex.split(command)
    assert words[0] == "autoport", command
    monkeypatch.chdir(tmp_path)
    env = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": None}
    result = CliRunner().invoke(app, words[1:], env=env)
    said = squeezed(result.stdout + result.stderr)
    assert result.exit_code == code, said
    for line in output:
        assert squeezed(line) in said, f"{line}\n---\n{said}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_command_in_the_text_exists_with_its_options(page: Path) -> None:
    for match in MENTIONED.finditer(page.read_text(encoding="utf-8")):
        command = (match[1] or match[2]).split("  #")[0]
        if not command.startswith("autoport "):
            assert elsewhere(command) or command.split()[0] == "vllm", command
            continue
        exists(command.split(" | ")[0].strip())


def exists(command: str) -> None:
    """The subcommand is one of ours, and so is every option."""
    here = get_command(app)
    options = {o for p in here.params for o in p.opts}
    words = command.replace("[", " ").replace("]", " ").split()[1:]
    for word in words:
        commands = getattr(here, "commands", {})
        names = word.split("|")
        if commands:
            assert set(names) <= set(commands), f"{command}: no command {word}"
            here = commands[names[0]]
            options |= {o for p in here.params for o in [*p.opts, *p.secondary_opts]}
        elif word.startswith("--"):
            assert word.split("=")[0].rstrip(",.") in options, f"{command}: no option {word}"


@pytest.mark.parametrize(("page", "test"), FOLLOWED.items())
def test_pages_that_are_followed_have_their_test(page: str, test: str) -> None:
    assert page in (ROOT / test).read_text(encoding="utf-8")
