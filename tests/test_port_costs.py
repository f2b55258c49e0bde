"""What a port costs, counted, not timed: graphs traced and rules looked at do not grow with the number of layers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from transformers import LlamaConfig, Qwen3MoeConfig

from neuron_autoport.port import Port, port_model
from neuron_autoport.rewrite import plan
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.tracer import Session


def small(layers: int, kind: str) -> Any:
    sizes: dict[str, Any] = {
        "num_hidden_layers": layers, "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "head_dim": 16,
    }  # fmt: skip
    if kind == "llama":
        return LlamaConfig(**sizes)
    return Qwen3MoeConfig(**sizes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_one_graph_and_one_plan_for_each_class_whatever_the_depth(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    record, find = Session._record, plan.find

    def recorded(*args: Any) -> Any:
        counts["graphs"] += 1
        return record(*args)

    def found(*args: Any) -> Any:
        counts["searches"] += 1
        return find(*args)

    monkeypatch.setattr(Session, "_record", recorded)
    monkeypatch.setattr(plan, "find", found)
    rules = load_rules()
    seen: list[tuple[Counter[str], Port]] = []
    for layers in (2, 24):
        counts.clear()
        port = port_model(small(layers, kind), rules)
        seen.append((counts.copy(), port))
    (few, short), (many, long) = seen
    assert few == many
    assert few["graphs"] == len(short.plans) == len(long.plans)
    assert few["searches"] == len(rules) * len(short.plans)
    assert len(list(long.sites())) > 8 * len(list(short.sites()))
