"""The stored table of what is served: whole, nothing wrong in it, and a handful of its rows run again.

Prompts are longer than a step of the engine, so each type reads some of them in pieces, beside other requests: latent
attention, windows of several widths, the text part of a model of several parts saved by itself, recurrent state with
and without attention, attention beside a state, attention written out in the layer (with ALiBi; with a window), a
layer that attends in several passes, a mask in chunks with rows counted for positions, modules before the head;
requests that run alone, on their own caches and read again; a configuration that vLLM's own class refuses; a model that
is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from benchmarks import served
from benchmarks.architectures import TYPES

pytestmark = pytest.mark.serve

AGAIN = [
    "deepseek_v3",
    "deepseek_v4",
    "gemma4_text",
    "mamba2",
    "qwen3_next",
    "zaya",
    "emu3",
    "blt",
    "gpt2",
    "bloom",
    "gpt_neo",
    "hrm_text",
    "llama4_text",
    "modernbert-decoder",
    "glm_moe_dsa",
    "rwkv",
    "cpmant",
    "reformer",
]


# vLLM has no cache for what these keep.
ALONE = {
    *("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"),  # keys of an indexer
    "deepseek_v4",  # the same, and entries that stand for several tokens
    *("minimax", "recurrent_gemma", "rwkv", "xlstm"),  # states kept in ways of their own
    "blt",  # patches, cut by the entropy of the bytes before
    *("cpmant", "doge", "inkling_text"),  # a mask or a bias of their own
    *("qwen4_exp", "qwen4_exp_text"),  # a mask of blocks chosen by their keys
}


def kept() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(served.KEPT.read_text(encoding="utf-8"))
    return data


def test_every_type_is_served_right_or_refused_with_a_reason() -> None:
    results = {name: row["result"] for name, row in kept().items()}
    assert set(results) == set(TYPES)
    kinds = [result.partition(":")[0] for result in results.values()]
    assert set(kinds) == {"served", "refused"}
    assert kinds.count("served") >= 133
    assert all(len(r) > 30 for r in results.values() if r.startswith("refused"))
    alone = {name for name, result in results.items() if result == "served: each request alone"}
    assert alone == ALONE


def test_nothing_that_vllm_serves_itself_is_refused() -> None:
    """Where vLLM's own Transformers backend gives Hugging Face's tokens, so do we."""
    assert [name for name, row in kept().items() if row["theirs"] == "served"] == []


def test_a_handful_of_types_still_gives_what_is_kept(tmp_path: Path) -> None:
    rows = served.measure_all(AGAIN, 1, (served.OURS,), tmp_path)
    found = {row.model_type: row.result for row in rows}
    assert found == {name: kept()[name]["result"] for name in AGAIN}
