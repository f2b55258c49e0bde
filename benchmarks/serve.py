"""Throughput of real models under vLLM: ours, vLLM's native implementation and its Transformers backend.

usage: python -m benchmarks.serve [FOLDER ...] [--rounds N] [--quick] [--no-rules] [--update]
FOLDER: models with weights; by default those of `make demo-model` and `make demo-model MODEL=gemma3-270m`. float32,
otherwise vLLM's defaults, compiled. Prefill of 512 tokens, decode at batch 1, 8 and 32, mixed lengths, and requests
over HTTP by vLLM's own client; engines take turns in every round. `--no-rules`: not over HTTP, four servers take more
memory than a small machine has. `--quick`: two points only. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.results import keep
from neuron_autoport.bench.command import Asked, bench
from neuron_autoport.bench.engines import OURS, UNFUSED
from neuron_autoport.bench.schema import LoadResult
from neuron_autoport.cache import cache_folder

IMPLS = ["vllm", "transformers", OURS]
POINTS = (("prefill", (1,)), ("decode", (1, 8, 32)), ("mixed", (8,)), ("serve", (8,)))
QUICK = (("prefill", (1,)), ("decode", (8,)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*", type=Path, default=demo_models())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-rules", action="store_true", help="beside ours unfused, too")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    points: list[dict[str, Any]] = []
    for folder in options.folders:
        loads = [(k, b) for k, sizes in (QUICK if options.quick else POINTS) for b in sizes]
        for served in (False, True):
            mine = [load for load in loads if (load[0] == "serve") is served]
            unfused = options.no_rules and not served
            for found in _measured(folder, mine, options.rounds, unfused) if mine else ():
                points.append({"model": folder.name} | _ratios(found))
                print(points[-1], flush=True)
    result = {
        "points": points,
        "least_to_vllm": min(p["to_vllm"] for p in points),
        "least_to_transformers": min(p["to_transformers"] for p in points),
        "same_tokens": all(p["same_tokens"] for p in points),
    }
    keep("serve", result, update=options.update)


def _measured(
    folder: Path, loads: list[tuple[str, int]], rounds: int, unfused: bool
) -> list[LoadResult]:
    asked = Asked(
        model=str(folder), impls=IMPLS, loads=loads, rounds=rounds, dtype="float32",
        eager=False, no_rules=unfused, trust_remote_code=False,
    )  # fmt: skip
    return bench(asked, lambda text: print(f"    {text}", file=sys.stderr, flush=True)).loads


def demo_models() -> list[Path]:
    """Folders of the models that the set-up has prepared."""
    found = [cache_folder("models") / name for name in ("smollm2-135m", "gemma3-270m")]
    return [folder for folder in found if (folder / "config.json").exists()]


def _ratios(load: LoadResult) -> dict[str, Any]:
    """Ours over the others: the median over rounds of the ratio within a round."""
    found = {r.impl: r for r in load.results}
    ours = found[OURS]
    said: dict[str, Any] = {"load": load.load}
    for name, impl in (("vllm", "vllm"), ("transformers", "transformers"), ("unfused", UNFUSED)):
        if impl in found:
            said[f"to_{name}"] = round(ours.over(found[impl]).median, 3)
    return said | {"same_tokens": ours.same_tokens}


if __name__ == "__main__":
    main()
