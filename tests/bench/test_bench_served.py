"""`autoport bench` with real engines: a tiny model, ours with and without rules, and vLLM's own backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.accuracy.test_served import word_tokenizer
from tests.cli.conftest import Run, run
from tests.hosts.vllm.serving import make_model

__all__ = ["run"]
pytestmark = pytest.mark.serve


def test_three_engines_answer_alike_and_are_compared(run: Run, tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path)
    ran = run(
        "bench", str(folder), "--impl", "transformers,neuron-transformers", "--no-rules", "--dtype",
        "float32", "--enforce-eager", "--batch", "2", "--rounds", "1", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    (load,) = report["loads"]
    names = ["transformers", "neuron-transformers", "neuron-transformers, no rules"]
    assert [r["impl"] for r in load["results"]] == names
    assert load["load"] == "decode, batch 2" and report["baseline"] == "transformers"
    assert all(r["same_tokens"] for r in load["results"])
    assert all(r["rate"]["median"] > 0 for r in load["results"])
    assert [e["impl"] for e in report["engines"]] == names
    assert all(e["memory"] > 2**27 and e["ready"] > 0 for e in report["engines"])


def test_servers_are_asked_by_vllms_own_client(run: Run, tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path)
    word_tokenizer(folder)
    ran = run(
        "bench", str(folder), "--impl", "neuron-transformers", "--no-rules", "--load", "serve",
        "--dtype", "float32", "--enforce-eager", "--batch", "1", "--rounds", "1", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    (load,) = report["loads"]
    assert load["load"] == "serve, batch 1" and load["tokens"] == 4 * 32
    assert all(r["same_tokens"] and r["rate"]["median"] > 0 for r in load["results"])
    assert [e["how"] for e in report["engines"]] == ["server", "server"]
    assert all(e["memory"] > 2**27 and e["ready"] > 0 for e in report["engines"])
