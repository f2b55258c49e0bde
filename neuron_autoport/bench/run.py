"""Ask all engines the same, by turns: each round starts with another one, so that none is always first."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from neuron_autoport.bench.engines import Answer
from neuron_autoport.bench.loads import Load
from neuron_autoport.bench.schema import LoadResult, Measured, spread


class Asked(Protocol):
    """An engine or a server."""

    impl: str

    def run(self, load: Load, vocabulary: int, seed: int) -> Answer: ...


def measure(
    engines: Sequence[Asked],
    load: Load,
    rounds: int,
    vocabulary: int,
    progress: Callable[[str], None] = lambda text: None,
) -> LoadResult:
    """One load on all engines; the first engine is the baseline.

    Args:
        rounds: measured ones; one more before them warms up. vocabulary: token ids are below it.
        progress: told what is about to be asked, and at the end the ratios: a later load may fail.
    """
    seconds: dict[str, list[float]] = {e.impl: [] for e in engines}
    said: dict[str, list[Any]] = {e.impl: [] for e in engines}
    for number in range(rounds + 1):
        start = number % len(engines)
        for engine in (*engines[start:], *engines[:start]):
            progress(f"{load.name}: round {number} of {rounds}, {engine.impl}")
            found = engine.run(load, vocabulary, number)
            if number:
                seconds[engine.impl].append(found.seconds)
                said[engine.impl].append(found.said)
    base = engines[0].impl
    results = [
        Measured(
            impl=impl,
            seconds=spread(times),
            each=times,
            rate=spread([load.tokens / s for s in times]),
            ratio=spread([b / s for b, s in zip(seconds[base], times, strict=True)]),
            same_tokens=said[impl] == said[base],
        )
        for impl, times in seconds.items()
    ]
    progress(f"{load.name}: {', '.join(f'{r.impl} {r.ratio.median:.2f}' for r in results)}")
    return LoadResult(load=load.name, tokens=load.tokens, results=results)


_SETTINGS = (
    "AUTOPORT_WITHOUT", "AUTOPORT_RULES", "AUTOPORT_PACKED_WEIGHTS", "OMP_NUM_THREADS",
    "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_DISABLE_COMPILE_CACHE",
)  # fmt: skip


def environment() -> dict[str, str]:
    """Variables of the user's that every engine inherits and that change what is measured."""
    return {name: os.environ[name] for name in _SETTINGS if os.environ.get(name)}


def machine() -> str:
    """What the figures hold for."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"
