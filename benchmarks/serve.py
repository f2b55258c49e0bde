"""Throughput of real models under vLLM: ours, vLLM's native implementation and its Transformers backend.

usage: python -m benchmarks.serve [FOLDER ...] [--rounds N] [--quick] [--no-http] [--no-rules] [--bfloat16]
       [--update]
FOLDER: models with weights; by default those of `make demo-model` and `make demo-model MODEL=gemma3-270m`. float32,
otherwise vLLM's defaults, compiled. Prefill of 512 tokens, decode at batch 1, 8 and 32, mixed lengths, and requests
over HTTP by vLLM's own client (`--no-http`: not these, they take longest); engines take turns in every round.
`--no-rules`: beside ours unfused, too; not over HTTP, four servers take more memory than a small machine has.
`--bfloat16`: each model also with its weights rounded to bfloat16 and stored so, as most are published (those of the
demo were quantized, and are stored in float32); not over HTTP, and run in float32 all the same. `--quick`: two points
only. The last line is JSON.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import bfloat16

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
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-http", action="store_true")
    parser.add_argument("--no-rules", action="store_true", help="beside ours unfused, too")
    parser.add_argument(
        "--bfloat16", action="store_true", help="each model also as it is published"
    )
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    points: list[dict[str, Any]] = []
    loads = [(k, b) for k, sizes in (QUICK if options.quick else POINTS) for b in sizes]
    inside = [load for load in loads if load[0] != "serve"]
    over_http = [load for load in loads if load[0] == "serve"]

    def measure(folder: Path, loads: list[tuple[str, int]], *, unfused: bool = False) -> None:
        for found in _measured(folder, loads, options.rounds, unfused) if loads else ():
            points.append({"model": folder.name} | _ratios(found))
            print(points[-1], flush=True)

    for folder in options.folders or demo_models():
        measure(folder, inside, unfused=options.no_rules)
        measure(folder, [] if options.no_http else over_http)
        if options.bfloat16:
            with tempfile.TemporaryDirectory() as other:
                measure(stored_in_bfloat16(folder, Path(other)), inside)
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


def stored_in_bfloat16(folder: Path, other: Path) -> Path:
    """A copy of the model in `other` whose tensors are in bfloat16."""
    made = other / f"{folder.name}, stored in bfloat16"
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors"))
    for file in folder.glob("*.safetensors"):
        tensors = {name: tensor.to(bfloat16) for name, tensor in load_file(file).items()}
        save_file(tensors, made / file.name, metadata={"format": "pt"})
    return made


def demo_models() -> list[Path]:
    """Folders of the models of `make demo-model`.

    Raises:
        SystemExit: one is not there.
    """
    found = [cache_folder("models") / name for name in ("smollm2-135m", "gemma3-270m")]
    for folder in found:
        if not (folder / "config.json").exists():
            sys.exit(f"no model in {folder}: run `make demo-model MODEL={folder.name}`")
    return found


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
