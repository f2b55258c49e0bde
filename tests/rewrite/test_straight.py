"""The function around a line: found by parsing its own text, it is the one that parsing the whole file gives."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path

import pytest
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_next import modeling_qwen3_next

from neuron_autoport.rewrite import straight

TRAPS = '''
def outer(x):
    """It says

    def inner(y):
        of another function.
    """
    def inner(y):
        return y + 1

    return inner(x)


class Holder:
    def outer(self, x):
        return x

    @staticmethod
    def inner(
        x,
    ):
        text = """
def outer(x):
"""
        return x, text
'''


def body(function: ast.FunctionDef) -> list[str]:
    """Its statements, each with its place; decorators lie outside."""
    return [ast.dump(statement, include_attributes=True) for statement in function.body]


def innermost(file: str) -> dict[int, tuple[str, int, list[str]]]:
    """For each line in a function: name, first line and body of the innermost, from the whole file."""
    tree = ast.parse("".join(linecache.getlines(file)))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    found: dict[int, tuple[str, int, list[str]]] = {}
    for f in sorted(functions, key=lambda f: f.lineno):
        for line in range(f.lineno, (f.end_lineno or 0) + 1):
            found[line] = (f.name, f.lineno, body(f))
    return found


@pytest.mark.parametrize("file", [modeling_llama.__file__, modeling_qwen3_next.__file__, None])
def test_a_function_alone_is_that_of_the_whole_file(file: str | None, tmp_path: Path) -> None:
    if file is None:
        traps = tmp_path / "traps.py"
        traps.write_text(TRAPS, encoding="utf-8")
        file = str(traps)
    lines = innermost(file)
    assert len(lines) > 10
    for line, (name, first, statements) in lines.items():
        found = straight._function(file, line, name)
        assert found is not None
        assert (found.name, found.lineno) == (name, first)
        assert body(found) == statements
    assert straight._function(file, 1, "nothing") is None


def test_the_whole_file_is_read_only_if_need_be(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    parse = straight._innermost

    def parsed(text: str, before: int, line: int) -> ast.FunctionDef | None:
        texts.append(text)
        return parse(text, before, line)

    monkeypatch.setattr(straight, "_innermost", parsed)
    straight._function.cache_clear()
    file = modeling_llama.__file__
    line = next(n for n, (name, _, _) in innermost(file).items() if name == "rotate_half")
    for _ in range(2):
        assert straight._function(file, line, "rotate_half") is not None
    assert len(texts) == 1 and texts[0].count("\n") < 10
