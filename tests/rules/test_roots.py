"""A search that looks only where a rule can begin finds what one that looks everywhere does, and misses by as much.

And a rule that is not tried, for want of an operation it cannot do without, would have found and told nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import GemmaConfig, LlamaConfig, Phi3Config, Qwen3MoeConfig

from neuron_autoport.port import port_model
from neuron_autoport.rewrite.near import tells
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.load import load_rule
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
    library = RulesByRoot(rules)
    found, missed, skipped, untried = 0, 0, 0, 0
    for plan in port_model(MODELS[name], rules).plans:
        for rule in rules:
            short = find(rule, plan.graph, roles)
            full = find(everywhere(rule, plan.graph), plan.graph, roles)
            assert [plain(m) for m in short.matches] == [plain(m) for m in full.matches], rule.name
            assert short.near_miss == full.near_miss, rule.name
            found += len(full.matches)
            missed += full.near_miss is not None
            skipped += rule not in library.within(plan.graph)
            if rule in library.within(plan.graph) and rule not in library.worth_trying(plan.graph):
                assert not full.matches, rule.name
                assert full.near_miss is None or not tells(rule, full.near_miss), rule.name
                untried += 1
    assert found > 10 and missed > 10 and skipped > 100 and untried > 20


NEEDS = {
    # The sum holds anywhere; with `relu` there one more of the five operations is there: three are told.
    "y = relu(x * 2.5) * tanh(x) + x": {"add", "mul", "relu"},
    # A capture that stands again, behind a view, is a miss that is always told.
    "y = (x + x) * tanh(x) * relu(x)": {"mul", "add"},
    "y = tanh(x) * exp(sin(cos(x)))": {"mul", "tanh", "exp"},
    "y = exp(sin(cos(x))) * tanh(x)": {"mul", "exp", "sin"},
    # Of what may be absent nothing is needed, nor of what comes after it.
    "y = tanh(exp(x) | sin(x)) * sigmoid(x)": {"mul", "tanh"},
    "y = tanh(x)": {"tanh"},
    "t = sigmoid(x)\ny = relu(abs(sin(cos(t))))": {"sigmoid", "relu", "abs"},
}


@pytest.mark.parametrize("match", NEEDS)
def test_what_a_rule_cannot_do_without(match: str, tmp_path: Path) -> None:
    lines = "".join(f"  {line}\n" for line in match.splitlines())
    file = tmp_path / "own.yaml"
    file.write_text(
        f"rule: own\nsummary: one's own\nmatch: |\n{lines}replace: y = NK.rms_norm(x, None, 1e-6)\n",
        encoding="utf-8",
    )
    assert load_rule(file).needs == NEEDS[match]


def test_a_library_gives_its_rules_in_order_and_leaves_out_only_what_cannot_begin() -> None:
    rules = load_rules()
    for plan in port_model(MODELS["llama"], rules).plans:
        within = RulesByRoot(rules).within(plan.graph)
        assert within == [r for r in rules if r in within]
        for rule in rules:
            if rule not in within:
                miss = find(everywhere(rule, plan.graph), plan.graph, Roles(rules))
                assert not miss.matches and miss.near_miss is None
