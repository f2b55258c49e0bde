"""A search that looks only where a rule can begin finds what one that looks everywhere does, and misses by as much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import GemmaConfig, LlamaConfig, Phi3Config, Qwen3MoeConfig

from neuron_autoport.port import port_model
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.match import Match
from neuron_autoport.rules.matcher import find
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.roots import RulesByRoot
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.ops import OpGraph

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "head_dim": 16, "pad_token_id": 0,
}  # fmt: skip
MODELS = {
    "llama": LlamaConfig(**SIZES),
    "gemma": GemmaConfig(**SIZES),
    "phi3": Phi3Config(**SIZES),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}


def everywhere(rule: Rule, graph: OpGraph) -> Rule:
    """The rule as if each of its equations could hold at any operation."""
    other = replace(rule)
    names = frozenset(graph.by_name)
    vars(other)["roots"] = tuple(names for _ in rule.roots)
    return other


def plain(match: Match) -> Any:
    return {n: repr(v) for n, v in match.values.items()}, match.interior, match.steps, match.columns


@pytest.mark.parametrize("name", MODELS)
def test_the_same_is_found_as_by_looking_everywhere(name: str) -> None:
    rules = load_rules()
    roles = Roles(rules)
    found, missed, skipped = 0, 0, 0
    for plan in port_model(MODELS[name], rules).plans:
        for rule in rules:
            short = find(rule, plan.graph, roles)
            full = find(everywhere(rule, plan.graph), plan.graph, roles)
            assert [plain(m) for m in short.matches] == [plain(m) for m in full.matches], rule.name
            assert short.near_miss == full.near_miss, rule.name
            found += len(full.matches)
            missed += full.near_miss is not None
            skipped += rule not in RulesByRoot(rules).within(plan.graph)
    assert found > 10 and missed > 10 and skipped > 100


def test_a_library_gives_its_rules_in_order_and_leaves_out_only_what_cannot_begin() -> None:
    rules = load_rules()
    for plan in port_model(MODELS["llama"], rules).plans:
        within = RulesByRoot(rules).within(plan.graph)
        assert within == [r for r in rules if r in within]
        for rule in rules:
            if rule not in within:
                miss = find(everywhere(rule, plan.graph), plan.graph, Roles(rules))
                assert not miss.matches and miss.near_miss is None
