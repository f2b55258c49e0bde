"""Deliberate faults in what the runner hands over change no token of a hosted model, nor of a package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.neuron.checkpoints import MODEL, Checkpoint, small, write
from tests.neuron.faults import ALL
from tests.neuron.runner import generate

# Windows, and decode in the fused function: one key/value head, of sizes the kernel takes.
CHANGES = {"hidden_size": 128, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp("faults")
    return write(folder, small("gemma3_text", **CHANGES))


@pytest.fixture(scope="module")
def wanted(saved: Checkpoint) -> Callable[[], list[list[int]]]:
    found = [saved.greedy(p, 4) for p in saved.prompts(7, 40)]
    return lambda: found


@pytest.mark.parametrize("name", ALL)
def test_faults_change_nothing(
    name: str, saved: Checkpoint, wanted: Callable[[], list[list[int]]]
) -> None:
    """Two requests in a batch of four: two rows are padding."""
    made = generate(
        MODEL, saved.folder, saved.prompts(7, 40), 4, compile=False, batch=4, seq_buckets=(4,),
        faults=ALL[name], allow_traps=True,
    )  # fmt: skip
    assert made.tokens == wanted()
    assert made.log.of("attention_decode") and made.log.of("flash_attention")
