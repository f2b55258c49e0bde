"""What a port costs, counted, not timed: graphs traced and rules looked at do not grow with the number of layers.

Nor do rules cost that cannot hold in a graph, and what each further layer costs is a small number of calls.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from transformers import LlamaConfig, Qwen3MoeConfig

from neuron_autoport.port import Port, port_model
from neuron_autoport.rewrite import plan, source
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.roots import RulesByRoot
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
    begin = RulesByRoot(rules)
    assert few["searches"] == sum(len(begin.worth_trying(plan.graph)) for plan in short.plans)
    assert 0 < 2 * few["searches"] < len(rules) * len(short.plans)
    assert len(list(long.sites())) > 8 * len(list(short.sites()))


# The first begins nowhere in the model. The second begins at every sum of it, but there is no softplus.
@pytest.mark.parametrize("match", ["y = softplus(x) - x", "y = softplus(x * 2.5) * tanh(x) + x"])
def test_a_rule_that_cannot_hold_in_a_model_is_not_searched_for(
    match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        f"rule: own\nsummary: one\nmatch: |\n  {match}\nreplace: y = NK.rms_norm(x, None, 1e-6)\n"
    )
    rules, searched = (*load_rules(), load_rule(file)), Counter[str]()
    find = plan.find

    def found(rule: Any, *args: Any) -> Any:
        searched[rule.name] += 1
        return find(rule, *args)

    monkeypatch.setattr(plan, "find", found)
    port_model(small(2, "llama"), rules)
    assert searched["rms_norm"] > 0 and searched["own"] == 0


def calls_of(layers: int, kind: str) -> int:
    """Python calls of a port after the model is built; the same in every run."""
    config, rules, counted = small(layers, kind), load_rules(), Counter[str]()
    built = False

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal built
        if event == "call":
            built = built or frame.f_code.co_name == "trace_model"
            counted["calls"] += built

    sys.setprofile(count)
    try:
        port_model(config, rules)
    finally:
        sys.setprofile(None)
    return counted["calls"]


@pytest.mark.parametrize(("kind", "most"), [("llama", 500), ("qwen3_moe", 550)])
def test_a_further_layer_costs_few_calls(kind: str, most: int) -> None:
    calls_of(2, kind)  # what is read once in a process
    few, many = calls_of(4, kind), calls_of(44, kind)
    assert 0 < (many - few) / 40 < most


def test_a_source_is_parsed_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []
    made = source.ForwardSource.__init__

    def making(self: Any, *args: Any) -> None:
        parsed.append(args[0])
        made(self, *args)

    source._parsed.cache_clear()
    source._source_of.cache_clear()
    monkeypatch.setattr(source.ForwardSource, "__init__", making)
    rules = load_rules()
    for layers in (2, 5):
        port_model(small(layers, "llama"), rules)
    assert parsed and len(parsed) == len(set(parsed))
