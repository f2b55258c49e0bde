"""No type loses what it had: every decoder-only type of transformers, held to `coverage.json`.

Every third type, and those that once lost something; AUTOPORT_COVERAGE=all takes all of them, as `make coverage` does.
Counts are of the transformers version they were made with; on another one they are not compared. What vLLM's own
fusers match is compared where vLLM is installed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import transformers

from benchmarks.architectures import TYPES
from benchmarks.coverage import KEPT, Row, measure, prepare, totals
from benchmarks.coverage_costs import DENSE, Shares
from benchmarks.vllm_fusers import Missing, available

DATA = json.loads(KEPT.read_text(encoding="utf-8"))


ALL = os.environ.get("AUTOPORT_COVERAGE") == "all"
CHOSEN = TYPES if ALL else sorted({*TYPES[::3], "gemma3n_text", "gpt2", "llama", "mixtral"})


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Row]]]:
    """The rows of all types whose tests were chosen, two at a time in processes of their own."""
    chosen = [
        item.callspec.params["model_type"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and "rows" in item.fixturenames
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=prepare) as pool:
        yield {model_type: pool.submit(measure, model_type) for model_type in chosen}


@pytest.mark.parametrize("model_type", CHOSEN)
def test_nothing_is_wrong_and_nothing_is_lost(
    model_type: str, rows: dict[str, Future[Row]]
) -> None:
    row = rows[model_type].result()
    assert not row.wrong
    if transformers.__version__ != DATA["transformers"]:
        return
    kept = DATA["types"][model_type]
    lost = {rule: n for rule, n in kept["fused"].items() if row.fused.get(rule, 0) < n}
    assert not lost, f"fewer sites than before: {lost}, now {row.fused}"
    assert row.traced >= kept["traced"], row.ends
    assert row.proved >= kept["proved"], row.dropped
    assert row.shares.layer_flops > kept["layer_flops"] - 0.001, row.shares.uncovered
    if available():
        missing = {f"{m.kind} {m.class_name}" for m in row.missing if m.beyond is None}
        assert missing <= set(kept["missing"]), row.missing


def test_every_type_is_kept() -> None:
    assert sorted(DATA["types"]) == sorted(TYPES)
    assert set(TYPES) >= DENSE and len(TYPES) == 134


def row(**more: Any) -> Row:
    """A row of which only what a test names matters."""
    usual: dict[str, Any] = {
        "model_type": "llama", "fused": {"rms_norm": 2}, "kinds": {}, "refused": {}, "kept": {},
        "dropped": (), "ends": (), "proved": True, "wrong": False, "fp32": None, "bf16": None,
        "shares": Shares(0.5, 0.5, 1.0, {}), "vllm": {}, "missing": (), "seconds": 1.0,
    }  # fmt: skip
    return Row(**usual | more)


def test_totals() -> None:
    rows = [
        row(),
        row(model_type="qwen2", shares=Shares(0.5, 0.5, 0.5, {}), proved=False, ends=("X: AP101",)),
        row(model_type="mixtral", shares=Shares(0.0, 0.0, 0.0, {}), wrong=True),
    ]
    # mixtral has experts, so it is not among the dense ones.
    assert totals(rows, 2.04) == {
        "architectures": 3, "proved": 2, "wrong": 1, "traced": 2, "superset_of_vllm": True,
        "dense_flops_fused_median": 0.75, "dense_flops_fused_min": 0.5, "seconds": 2.0,
    }  # fmt: skip
    assert totals([row(vllm=None)], 1.0)["superset_of_vllm"] is None
    missing = (Missing("qkv", "Attention", 1, "model.attn", ("no rule came near",)),)
    assert totals([row(), row(missing=missing)], 1.0)["superset_of_vllm"] is False
    beyond = (replace(missing[0], beyond="it has no such expert"),)
    assert totals([row(), row(missing=beyond)], 1.0)["superset_of_vllm"] is True
    assert totals([row(missing=missing), row(missing=beyond)], 1.0)["superset_of_vllm"] is False
