"""Prompts to validate with: a built-in set, a file, or a folder; as token ids.

A file is text (one prompt per line) or JSON lines: a string, a list of token ids, or an object with `prompt`,
`text` or `input_ids`. A folder is every such file in it, or a data set saved by the `datasets` library.
A model without a tokenizer gets random ids, the same ones each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PretrainedConfig

from neuron_autoport.errors import AutoportError
from neuron_autoport.models.failures import BUILD_ERRORS
from neuron_autoport.models.source import ModelSource

# Prose, a list, code, digits, another language, and repetition: each uses attention in its own way.
BUILTIN = (
    "The capital of France is Paris, and the capital of Italy is",
    "Water boils at one hundred degrees. When a kettle is put on the stove, the heat moves from the "
    "flame into the metal, from the metal into the water, and after some minutes the first small "
    "bubbles rise from the bottom. A little later the whole surface is in motion, steam fills the "
    "kitchen, and whoever wanted tea takes the kettle from the stove and pours the water into the",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "Der Zug nach München fährt heute von Gleis sieben ab, weil auf Gleis",
    "red blue red blue red blue red blue red",
)
_READ_ERRORS: tuple[type[Exception], ...] = (OSError, *BUILD_ERRORS)
_KEYS = ("prompt", "text", "input_ids")
_SUFFIXES = (".txt", ".jsonl", ".json")


@dataclass(frozen=True)
class Prompt:
    """One prompt: a short name for reports, and its token ids."""

    name: str
    ids: tuple[int, ...]


class PromptError(AutoportError):
    """The prompts cannot be read."""


def load_prompts(
    source: ModelSource | PretrainedConfig, where: Path | None, *, count: int = 6, length: int = 96
) -> list[Prompt]:
    """The prompts to use.

    Args:
        where: a file or a folder; None for the built-in set. count: at most so many.
        length: each is cut to so many tokens.

    Raises:
        PromptError: nothing there, unreadable, or text for a model without a tokenizer.
    """
    tokenizer = _tokenizer(source)
    vocabulary = _text(source).vocab_size
    if where is None:
        if tokenizer is None:
            return _random(vocabulary, count, length)
        raw: list[Any] = list(BUILTIN)
    else:
        raw = list(_read(where))
    prompts = []
    for number, item in enumerate(raw):
        ids = _encode(item, tokenizer, where)[:length]
        if len(ids) < 2:
            continue
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise PromptError(
                f"prompt {number + 1} has a token id outside 0 … {vocabulary - 1}",
                str(where), "make the ids with the model's own tokenizer",
            )  # fmt: skip
        prompts.append(Prompt(_name(number, item), tuple(ids)))
        if len(prompts) == count:
            break
    if not prompts:
        raise PromptError(
            "no prompt of two tokens or more",
            str(where),
            "one prompt per line, or JSON lines with `prompt`",
        )
    return prompts


def rows_of(prompts: list[Prompt], tokens: int) -> Tensor:
    """Their tokens one after the other in rows of equal length, without padding; level 3's input."""
    stream = [i for p in prompts for i in p.ids]
    width = min(tokens, len(stream))
    rows = max(1, len(stream) // width)
    return torch.tensor(stream[: rows * width]).view(rows, width)


def _text(source: ModelSource | PretrainedConfig) -> Any:
    return source.text_config if isinstance(source, ModelSource) else source.get_text_config()


def _tokenizer(source: ModelSource | PretrainedConfig) -> Any:
    if not isinstance(source, ModelSource) or source.kind == "model_type":
        return None
    name = str(source.folder) if source.folder is not None else source.name
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=source.trust_remote_code)
    except _READ_ERRORS:
        return None  # a folder without a tokenizer: prompts are ids


def _random(vocabulary: int, count: int, length: int) -> list[Prompt]:
    generator = torch.Generator().manual_seed(0)
    low = min(3, vocabulary - 1)
    lengths = [max(2, length // d) for d in (8, 1, 3, 12, 2, 5)]
    return [
        Prompt(f"random {i + 1}", tuple(
            torch.randint(low, vocabulary, (lengths[i % 6],), generator=generator).tolist()
        ))
        for i in range(count)
    ]  # fmt: skip


def _name(number: int, item: Any) -> str:
    text = item if isinstance(item, str) else ""
    short = " ".join(text.split()[:4])
    return f"{number + 1}: {short}…" if short else f"{number + 1}"


def _encode(item: Any, tokenizer: Any, where: Path | None) -> list[int]:
    if isinstance(item, list):
        return [int(i) for i in item]
    if tokenizer is None:
        raise PromptError(
            "the model's folder has no tokenizer, so prompts must be token ids",
            str(where),
            'JSON lines like {"input_ids": [5, 17, 3]}',
        )
    return list(tokenizer(item)["input_ids"])


def _read(where: Path) -> Iterator[Any]:
    if where.is_dir():
        files = sorted(f for f in where.rglob("*") if f.suffix in _SUFFIXES and f.is_file())
        if (where / "dataset_info.json").is_file() or (where / "dataset_dict.json").is_file():
            yield from _dataset(where)
            return
        for file in files:
            yield from _read(file)
        return
    try:
        lines = where.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(
            f"prompts cannot be read: {error}", str(where), "autoport validate MODEL"
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        yield line if where.suffix == ".txt" else _item(line, f"{where}:{number}")


def _item(line: str, where: str) -> Any:
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(
            f"not a line of JSON: {error.msg}", f"{where}:{error.colno}", "one JSON value per line"
        ) from error
    return _value(item, where)


def _value(item: Any, where: str) -> Any:
    if isinstance(item, dict):
        item = next((item[k] for k in _KEYS if k in item), None)
    if isinstance(item, str) or (
        isinstance(item, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in item)
    ):
        return item
    raise PromptError(
        "neither a text nor a list of token ids", where, f"use one of the keys {', '.join(_KEYS)}"
    )


def _dataset(where: Path) -> Iterator[Any]:
    try:
        from datasets import Dataset, load_from_disk
    except ImportError:
        raise PromptError(
            "this folder is a saved data set; reading it takes the library `datasets`",
            str(where),
            "pip install neuron-autoport[validate]",
        ) from None
    found = load_from_disk(str(where))
    table = found if isinstance(found, Dataset) else next(iter(found.values()))
    for number, row in enumerate(table):
        yield _value(dict(row), f"{where}, row {number}")
