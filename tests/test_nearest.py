"""The nearest spelling: one helper, one limit, for all that names what may have been meant."""

from __future__ import annotations

from pathlib import Path

import pytest

import neuron_autoport
from neuron_autoport.nearest import near, nearest


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("silo", ["gelu", "silu", "relu"], ["silu"]),
        ("ActFn", ["actfn_type", "ACT_FN"], ["ACT_FN", "actfn_type"]),  # ratios 10/11 and 10/15
        ("lm_head.wieght", ["lm_head.weight", "norm.weight"], ["lm_head.weight"]),
        ("qwen", ["llama", "opt"], []),
        ("", ["a"], []),
        ("a", [], []),
    ],
)
def test_nearest(word: str, known: list[str], expected: list[str]) -> None:
    assert nearest(word, known, 2)[: len(expected)] == expected
    assert bool(nearest(word, known)) is bool(expected)
    assert nearest(word, reversed(known), 2) == nearest(word, known, 2)  # in whatever order


def test_near() -> None:
    assert near("silo", ["silu"]) == "; did you mean `silu`?"
    assert near("silo", ["mul"]) == ""


def test_nothing_else_looks_for_spellings() -> None:
    """Another limit somewhere would give other guesses for the same word."""
    root = Path(neuron_autoport.__file__).parent
    files = [p for p in root.rglob("*.py") if "get_close_matches" in p.read_text(encoding="utf-8")]
    assert files == [root / "nearest.py"]
