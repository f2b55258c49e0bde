"""From process start to the first token, and the memory an engine holds, beside vLLM's own implementations.

usage: python -m benchmarks.startup [FOLDER ...] [--rounds N] [--update]
Each implementation starts in a new process, by turns. The first round has nothing kept: no compiled code, no proof. The
others have what the first one left. float32, vLLM's defaults, compiled. The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.results import keep
from benchmarks.serve import IMPLS, demo_models
from neuron_autoport.bench.engines import OURS, Settings, engines
from neuron_autoport.bench.loads import Load

FIRST = Load("decode", (16,), 1, 1)
WORK = Load("prefill", (512,), 8, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    models = {
        folder.name: _model(folder, options.rounds) for folder in options.folders or demo_models()
    }
    worst = {key: max(m[key] for m in models.values()) for key in next(iter(models.values()))}
    keep("startup", worst | {"models": models}, update=options.update)


def _model(folder: Path, rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {impl: [] for impl in IMPLS}
    memory: dict[str, list[int]] = {impl: [] for impl in IMPLS}
    with tempfile.TemporaryDirectory(prefix="autoport-startup-") as kept:
        os.environ["VLLM_CACHE_ROOT"] = f"{kept}/vllm"
        os.environ["AUTOPORT_CACHE"] = f"{kept}/autoport"
        for number in range(rounds + 1):
            start = number % len(IMPLS)
            for impl in (*IMPLS[start:], *IMPLS[:start]):
                took, held = _start(folder, impl, Path(kept))
                seconds[impl].append(took)
                memory[impl].append(held)
                print(
                    f"{folder.name}, round {number}: {impl} {took:.1f} s, {held >> 20} MiB",
                    flush=True,
                )
    theirs, ours = seconds["transformers"], seconds[OURS]
    again = [b / a for a, b in zip(theirs[1:], ours[1:], strict=True)]
    shares = [b / a for a, b in zip(memory["vllm"][1:], memory[OURS][1:], strict=True)]
    return {
        "first_to_transformers": round(ours[0] / theirs[0], 3),
        "again_to_transformers": round(median(again), 3),
        "memory_to_vllm": round(median(shares), 3),
    }


def _start(folder: Path, impl: str, kept: Path) -> tuple[float, int]:
    """Seconds until the first token, and bytes held after some work."""
    settings = Settings(str(folder), "float32", 1024, 8, eager=False)
    started = time.perf_counter()
    with engines(settings, [impl], kept) as (engine,):
        vocabulary = 1000
        engine.run(FIRST, vocabulary, 0)
        took = time.perf_counter() - started
        engine.run(WORK, vocabulary, 1)
        return took, engine.memory()


if __name__ == "__main__":
    main()
