"""Files that are no rule file at all: told with a place, and what was expected, by every command that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

GOOD = b"rule: mine\nsummary: caf\xc3\xa9\nmatch: y = exp(x)\nrefuse: no function\n"
FILES = {
    "of another encoding": (
        GOOD.replace(b"caf\xc3\xa9", b"caf\xe9"), "the file is not UTF-8 text", "2:13",
    ),
    "of two bytes a character": (GOOD.decode().encode("utf-16"), "the file is not UTF-8 text", "1:1"),
    "binary": (b"rule: mine\n" + bytes(range(127, 256)), "the file is not UTF-8 text", "2:2"),
    "with a control character": (
        GOOD.replace(b"caf", b"c\x07f"), "not YAML: the character U+0007 is not allowed", "2:11",
    ),
    "of two documents": (
        GOOD + b"---\n" + GOOD,
        "not YAML: expected a single document in the stream, but found another document", "5:1",
    ),
    "with a field twice": (
        GOOD + b"summary: two\n", 'not YAML: found duplicate key "summary" with value "two"', "5:1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["test", "list"])
def test_a_file(run: Run, tmp_path: Path, name: str, command: str) -> None:
    content, said, place = FILES[name]
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    told = [str(path)] if command == "test" else ["--rules", str(tmp_path)]
    ran = run("rules", command, *told)
    assert (ran.code, ran.out) == (2, "") and "Traceback" not in ran.err
    assert ran.err.startswith(f"error: {said}")
    assert f"  at:  {path}:{place}\n" in ran.err and "  try: autoport rules show" in ran.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "1:1: a rule file is a mapping that starts with `rule: NAME`"),
        (b"# only a comment\n", "1:1: a rule file is a mapping that starts with `rule: NAME`"),
        (b"- rule: mine\n", "1:1: a rule file is a mapping that starts with `rule: NAME`"),
    ],
)
def test_no_mapping(run: Run, tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    ran = run("rules", "test", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert f"error: rule file has one fault:\n{path}:{said}\n" in ran.err


def test_a_folder_of_a_file_s_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").mkdir()
    alone = run("rules", "test", str(tmp_path / "mine.yaml"))
    assert (alone.code, alone.out) == (2, "") and "no rule files (*.yaml) in " in alone.err
    among = run("rules", "list", "--rules", str(tmp_path))
    assert (among.code, among.out) == (2, "") and "cannot be read: Is a directory" in among.err


def test_the_good_one_is_good(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(GOOD)
    assert run("rules", "test", str(tmp_path / "mine.yaml")).code == 0
