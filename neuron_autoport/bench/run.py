"""Ask all engines the same, by turns: each round starts with another one, so that none is always first."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from statistics import median

from neuron_autoport.bench.engines import Engine
from neuron_autoport.bench.loads import Load
from neuron_autoport.bench.schema import LoadResult, Measured, Spread


def measure(
    engines: Sequence[Engine],
    load: Load,
    rounds: int,
    vocabulary: int,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[LoadResult, dict[str, int]]:
    """One load on all engines; the first engine is the baseline.

    Args:
        rounds: measured ones; one more before them warms up. vocabulary: token ids are below it.
        progress: told what is about to be asked.

    Returns:
        The result, and each engine's peak memory.
    """
    seconds: dict[str, list[float]] = {e.impl: [] for e in engines}
    tokens: dict[str, list[list[list[int]]]] = {e.impl: [] for e in engines}
    memory: dict[str, int] = {}
    for number in range(rounds + 1):
        prompts = load.draw(vocabulary, number)
        start = number % len(engines)
        for engine in (*engines[start:], *engines[:start]):
            progress(f"{load.name}: round {number} of {rounds}, {engine.impl}")
            found = engine.ask(prompts, load.answer)
            memory[engine.impl] = found["memory"]
            if number:
                seconds[engine.impl].append(found["seconds"])
                tokens[engine.impl].append(found["tokens"])
    base = engines[0].impl
    results = [
        Measured(
            impl=impl,
            seconds=spread(times),
            rate=spread([load.tokens / s for s in times]),
            ratio=spread([b / s for b, s in zip(seconds[base], times, strict=True)]),
            same_tokens=tokens[impl] == tokens[base],
        )
        for impl, times in seconds.items()
    ]
    return LoadResult(load=load.name, tokens=load.tokens, results=results), memory


def spread(values: list[float]) -> Spread:
    """Median, least and most."""
    return Spread(median=median(values), least=min(values), most=max(values))


def machine() -> str:
    """What the figures hold for."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"
