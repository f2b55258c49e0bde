"""Parts of the terminal report by themselves: names of ranges, numbers, carets, diffs."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.text import Text

from neuron_autoport.report.diff import _unified
from neuron_autoport.report.fold import range_name
from neuron_autoport.report.numbers import count, percent, sizes
from neuron_autoport.report.places import caret_range, short_file
from neuron_autoport.report.schema import Place, Weight
from neuron_autoport.report.terminal import caret_lines
from neuron_autoport.trace.spans import Span


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ([0], "layers.0"),
        ([0, 1, 2], "layers.0-2 ×3"),
        ([5, 11, 17, 23], "layers.5, 11, 17, 23 ×4"),
        ([0, 1, 3, 10, 11, 9], "layers.0-1, 3, 9-11 ×6"),
        ([0, 2, 4, 6, 8], "layers.0, 2, 4, … ×5"),
    ],
)
def test_range_name(numbers: list[int], name: str) -> None:
    assert range_name("layers.*", [f"layers.{n}" for n in numbers]) == name


def test_range_name_keeps_what_follows() -> None:
    assert range_name("blocks.*.mlp", ["blocks.0.mlp", "blocks.1.mlp"]) == "blocks.0-1.mlp ×2"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (134515008, "135 M"),
        (6738415616, "6.74 B"),
        (12.3e9, "12.3 B"),
        (1.2e12, "1.20 T"),
    ],
)
def test_count(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (0.04, "<0.1 %"), (12.345, "12.3 %"), (99.95, ">99.9 %"), (100, "100 %")],
)
def test_percent(value: float, text: str) -> None:
    assert percent(value) == text


def _weight(inputs: int, *widths: int) -> Weight:
    return Weight(
        name="w",
        attribute="w",
        in_features=inputs,
        out_features=sum(widths),
        sizes=list(widths),
        shard="column",
        head_dim=None,
        parts=[],
    )


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([_weight(4, 8)], "4→8"),
        ([_weight(4, 8), _weight(4, 8), _weight(8, 4)], "4→8→4"),
        ([_weight(4, 8, 2, 2)], "4→8+2+2"),
        ([_weight(4, 8), _weight(4, 6)], "4→8, 4→6"),
    ],
)
def test_sizes(weights: list[Weight], text: str) -> None:
    assert sizes(weights) == text


def _place(source: str, expression: str) -> Place:
    start = source.index(expression)
    return Place(
        file="m.py",
        line=12,
        column=start + 1,
        end_column=start + len(expression) + 1,
        source=source,
    )


def _marked(lines: list[Text]) -> str:
    """What stands above the carets."""
    source, carets = (line.plain for line in lines)
    return source[carets.index("^") : carets.rindex("^") + 1]


@pytest.mark.parametrize("width", [200, 60, 40])
def test_carets_stand_below_the_expression(width: int) -> None:
    source = "        attn_weights, other = self.first(x) + self.o_proj(a) + self.third(hidden)"
    lines = caret_lines(_place(source, "self.o_proj(a)"), width)
    assert _marked(lines) == "self.o_proj(a)"
    assert all(line.cell_len <= width for line in lines)


def test_carets_of_an_expression_wider_than_the_line() -> None:
    source = "    y = self.o_proj(" + "a_long_name + " * 10 + "b)"
    lines = caret_lines(_place(source, source[8:]), 50)
    assert _marked(lines).startswith("self.o_proj(a_long_name")
    assert all(line.cell_len <= 50 for line in lines)


def test_columns_count_characters_not_bytes(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    line = "é = ü + f(x)\n"
    file.write_text(line, encoding="utf-8")
    start, end = (len(line[:n].encode()) for n in (line.index("f("), line.index(")") + 1))
    found = caret_range(Span(str(file), 1, start, 1, end, "forward"))
    assert line[slice(*found)] == "f(x)"


def test_files_are_shown_without_the_machine() -> None:
    import transformers.models.llama.modeling_llama as module

    assert module.__file__ is not None
    assert short_file(module.__file__) == "transformers/models/llama/modeling_llama.py"
    assert short_file("/nowhere/at/all/modeling_x.py") == "modeling_x.py"


def test_unified_diff_has_the_lines_of_the_file() -> None:
    old = [f"line {n}" for n in range(20)]
    new = [*old[:10], "changed", *old[11:]]
    assert list(_unified(old, new, 101, 1)) == [
        "@@ -110,3 +110,3 @@",
        " line 9",
        "-line 10",
        "+changed",
        " line 11",
    ]
