"""How the cost of a port grows: over layers, width, experts, and the number of rules.

usage: python -m benchmarks.scale [--update]
Seconds to trace, match and plan, each the least of some rounds, over those of the smallest size. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from benchmarks.coverage import prepare
from benchmarks.results import keep
from neuron_autoport.port import port_model
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.rule import Rule

ROUNDS = 5
RULES = (10, 50, 100, 250, 500)
OPERATIONS = ("relu", "tanh", "sigmoid", "exp", "sin", "cos", "abs", "neg", "sqrt", "log")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    prepare()
    rules = load_rules()
    port_model(LlamaConfig(), rules)  # imports and first calls
    growth = {
        "layers": _grow((4, 16, 64, 128), lambda n: LlamaConfig(num_hidden_layers=n), rules),
        "hidden size": _grow((1024, 4096, 16384), _wide, rules),
        "experts": _grow((8, 64, 512), _experts, rules),
    }
    library = rules_like(max(RULES))
    by_rules = {n: _seconds(LlamaConfig(), library[:n]) for n in RULES}
    base = by_rules[RULES[0]]
    growth["rules"] = {
        "sizes": list(RULES), "ratios": [round(s / base, 3) for s in by_rules.values()],
    }  # fmt: skip
    result = {"growth": growth, "rules_50_to_500": round(by_rules[500] / by_rules[50], 3)}
    keep("scale", result, update=options.update)


def _wide(size: int) -> PretrainedConfig:
    return LlamaConfig(
        hidden_size=size, intermediate_size=4 * size, num_attention_heads=size // 128
    )


def _experts(number: int) -> PretrainedConfig:
    return Qwen3MoeConfig(num_experts=number, num_hidden_layers=4, num_experts_per_tok=4)


def _grow(
    sizes: tuple[int, ...], config: Callable[[int], PretrainedConfig], rules: tuple[Rule, ...]
) -> dict[str, Any]:
    seconds = [_seconds(config(n), rules) for n in sizes]
    ratios = [round(s / seconds[0], 3) for s in seconds]
    print(dict(zip(sizes, ratios, strict=True)), flush=True)
    return {"sizes": list(sizes), "ratios": ratios}


def _seconds(config: PretrainedConfig, rules: tuple[Rule, ...]) -> float:
    found = []
    for _ in range(ROUNDS):
        gc.collect()
        seconds = port_model(config, rules).seconds
        found.append(seconds["trace"] + seconds["plan"])
    return min(found)


def rules_like(number: int) -> tuple[Rule, ...]:
    """The built-in rules, filled up with other ones as a user may have: they begin as an MLP or a norm does."""
    rules = list(load_rules())
    with tempfile.TemporaryDirectory() as folder:
        for i in range(number - len(rules)):
            first, second = OPERATIONS[i % 10], OPERATIONS[i // 10 % 10]
            file = Path(folder) / f"own_{i}.yaml"
            file.write_text(
                f"rule: own_{i}\nsummary: a fused operation of one's own\nmatch: |\n"
                f"  y = {first}(x * {i + 2}.5) * {second}(x) + x\n"
                f"replace: y = NK.rms_norm(x, None, 1e-6)\n",
                encoding="utf-8",
            )
            rules.append(load_rule(file))
    return tuple(rules[:number])


if __name__ == "__main__":
    main()
