"""Prompts from files, folders and the built-in set; what is refused, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.accuracy.prompts import PromptError, load_prompts, rows_of
from tests.helpers import small_config

CONFIG = small_config("llama")  # 96 words, no tokenizer


def test_random_prompts_are_the_same_each_time() -> None:
    first, second = load_prompts(CONFIG, None, length=48), load_prompts(CONFIG, None, length=48)
    assert first == second and len(first) == 6
    assert {len(p.ids) for p in first} == {6, 48, 16, 4, 24, 9}
    assert all(3 <= i < 96 for p in first for i in p.ids)


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"input_ids": [5, 6, 7]}\n\n[8, 9]\n{"prompt": [1, 2, 3, 4]}\n'
    )
    (tmp_path / "b.json").write_text("[10, 11, 12, 13, 14]\n")
    found = [p.ids for p in load_prompts(CONFIG, tmp_path, length=4)]
    assert found == [(5, 6, 7), (8, 9), (1, 2, 3, 4), (10, 11, 12, 13)]
    assert [p.ids for p in load_prompts(CONFIG, tmp_path / "a.jsonl", count=2)] == [
        (5, 6, 7),
        (8, 9),
    ]


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("[1, 2]\n{oops\n", "not a line of JSON", ":2:2"),
        ('{"other": 1}\n', "neither a text nor a list", ":1"),
        ("[1, 96]\n", "outside 0 … 95", "p.jsonl"),
        ("[1, true]\n", "neither a text nor a list", ":1"),
        ("[1]\n", "no prompt of two tokens", "p.jsonl"),
        ('"some words"\n', "no tokenizer", "p.jsonl"),
    ],
)
def test_faults(tmp_path: Path, text: str, message: str, where: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    with pytest.raises(PromptError, match=message) as caught:
        load_prompts(CONFIG, file)
    assert caught.value.where is not None and caught.value.where.endswith(where)
    assert caught.value.next_step


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot be read"):
        load_prompts(CONFIG, tmp_path / "none.txt")


def test_rows_hold_the_tokens_in_order() -> None:
    prompts = load_prompts(CONFIG, None, length=48)
    rows = rows_of(prompts, 20)
    stream = [i for p in prompts for i in p.ids]
    assert (
        rows.shape == (len(stream) // 20, 20) and rows.flatten().tolist() == stream[: rows.numel()]
    )
    assert rows_of(prompts[:1], 20).shape == (1, 6)
