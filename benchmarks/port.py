"""What a port costs beside vLLM's detection of what it can fuse, and what it does not depend on.

usage: python -m benchmarks.port [TYPE ...] [--update]
Every type of the coverage run at its default size, on the meta device: our trace, match and plan, and vLLM's fusers
on a model of their own, in one process and by turns. Then Llama with 4 to 128 layers, the whole proof of a tiny model,
and a mixture of experts of 400 billion parameters inspected in a process of its own. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from benchmarks.architectures import TYPES, default_config
from benchmarks.coverage import prepare
from benchmarks.results import keep
from benchmarks.vllm_fusers import their_sites
from neuron_autoport.models.build import meta_model
from neuron_autoport.pipeline import proved_port
from neuron_autoport.port import base_path, port_model
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.rule import Rule

DEPTHS = (4, 16, 64, 128)
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*", default=TYPES)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    prepare()
    rules = load_rules()
    _ours(LlamaConfig(), rules), _theirs(LlamaConfig())  # imports and first calls
    ours, theirs = 0.0, 0.0
    for number, model_type in enumerate(options.types):
        first, second = _by_turns(default_config(model_type), rules, number)
        ours, theirs = ours + first, theirs + second
        print(f"{model_type:24} {first:7.3f} s, vLLM {second:7.3f} s", flush=True)
    depths = {n: _best(LlamaConfig(num_hidden_layers=n), rules) for n in DEPTHS}
    for depth, seconds in depths.items():
        print(f"{depth} layers {seconds:.3f} s")
    result = {
        "architectures": len(options.types),
        "ratio_to_vllm": round(ours / theirs, 3),
        "depth_ratio": round(max(depths.values()) / min(depths.values()), 3),
        "proof_seconds": round(_proof(rules), 2),
        "inspected_parameters": _big().num_parameters(),
        "inspect_peak_mib": _peak_of_inspection(),
    }
    keep("port", result, update=options.update)


def _by_turns(
    config: PretrainedConfig, rules: tuple[Rule, ...], number: int
) -> tuple[float, float]:
    if number % 2:
        theirs = _theirs(config)
        return _ours(config, rules), theirs
    return _ours(config, rules), _theirs(config)


def _ours(config: PretrainedConfig, rules: tuple[Rule, ...]) -> float:
    """Seconds to trace, match and plan."""
    gc.collect()
    seconds = port_model(config, rules).seconds
    return seconds["trace"] + seconds["plan"]


def _theirs(config: PretrainedConfig) -> float:
    """Seconds in vLLM's fusers, in the order in which its backend visits the modules."""
    model: Any = meta_model(config)
    gc.collect()
    started = time.perf_counter()
    their_sites(model, base_path(model))
    return time.perf_counter() - started


def _best(config: PretrainedConfig, rules: tuple[Rule, ...]) -> float:
    return min(_ours(config, rules) for _ in range(ROUNDS))


def _proof(rules: tuple[Rule, ...]) -> float:
    """Seconds of a whole proof, the best of some."""
    config = LlamaConfig(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256,
    )  # fmt: skip
    return min(proved_port(config, rules, use_cache=False).seconds for _ in range(ROUNDS))


def _big() -> Any:
    """A mixture of experts of some 400 billion parameters, on the meta device."""
    return meta_model(
        Qwen3MoeConfig(
            hidden_size=7168, num_hidden_layers=60, num_attention_heads=64, num_key_value_heads=8,
            head_dim=128, moe_intermediate_size=2560, num_experts=120, num_experts_per_tok=8,
            vocab_size=151936,
        )
    )  # fmt: skip


def _peak_of_inspection() -> int:
    """Most MiB that a process held in which `autoport inspect` ran on it."""
    code = (
        "import os, tempfile, pathlib; from benchmarks.port import _big;"
        "from neuron_autoport.bench.memory import peak_memory;"
        "from typer.testing import CliRunner; from neuron_autoport.cli.app import app;"
        "folder = pathlib.Path(tempfile.mkdtemp()); _big().config.save_pretrained(folder);"
        "done = CliRunner().invoke(app, ['inspect', str(folder), '--json']);"
        "assert done.exit_code == 0, done.output;"
        "print(peak_memory(os.getpid()) >> 20)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
