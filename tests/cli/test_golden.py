"""The text of `autoport inspect`, model by model, against files under golden/.

To make the files anew, then read the diff: AUTOPORT_UPDATE_GOLDEN=1 pytest tests/cli/test_golden.py
The first line of each names the transformers version whose source lines it shows.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import transformers

from tests.cli.conftest import Run

GOLDEN = Path(__file__).parent / "golden"
MODELS = (
    "llama", "qwen2", "qwen3", "mistral", "gemma3_text",
    "granite", "phi3", "stablelm", "opt", "gpt2",
)  # fmt: skip
DIFFS = ("qwen2", "gemma3_text")
SERVED = {"llama": ("--tp", "8"), "gemma3_text": ("--tp", "4", "--target", "trn3")}
_MINOR = ".".join(transformers.__version__.split(".")[:2])


def _normal(text: str) -> str:
    """Without what changes from run to run: the version and the time."""
    return re.sub(r"transformers [\w.]+, [\d.]+ s", "transformers VERSION, TIME s", text)


def _compare(name: str, text: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("AUTOPORT_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# transformers {_MINOR}\n{_normal(text)}", encoding="utf-8")
        return
    assert file.exists(), f"{file.name} is missing: run with AUTOPORT_UPDATE_GOLDEN=1"
    first, _, expected = file.read_text(encoding="utf-8").partition("\n")
    if first != f"# transformers {_MINOR}":
        pytest.skip(
            f"golden text is of {first[2:]}, installed is {_MINOR}: source lines may differ"
        )
    assert _normal(text) == expected


@pytest.mark.parametrize("model", MODELS)
def test_inspect_prints_the_golden_text(run: Run, model: str) -> None:
    ran = run("inspect", model)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 100
    _compare(model, ran.out)


@pytest.mark.parametrize("model", DIFFS)
def test_diff_prints_the_golden_text(run: Run, model: str) -> None:
    ran = run("inspect", model, "--diff")
    assert (ran.code, ran.err) == (0, "")
    _compare(f"{model}.diff", ran.out)


@pytest.mark.parametrize("model", SERVED)
def test_serving_table_prints_the_golden_text(run: Run, model: str) -> None:
    ran = run("inspect", model, "--buckets", "128,512", *SERVED[model])
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 100
    _compare(f"{model}.serving", ran.out[ran.out.index("\nOn trn") + 1 :])
