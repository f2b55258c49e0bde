"""From what the user asked for to a `BenchReport`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuron_autoport.bench.engines import UNFUSED, BenchError, Settings, engines
from neuron_autoport.bench.loads import load_of
from neuron_autoport.bench.run import machine, measure
from neuron_autoport.bench.schema import BenchReport, EngineInfo


@dataclass(frozen=True)
class Asked:
    """The options of the command; the first implementation is the baseline."""

    model: str
    impls: list[str]
    kinds: list[str]
    batches: list[int]
    rounds: int
    dtype: str
    eager: bool
    no_rules: bool
    trust_remote_code: bool


def bench(asked: Asked, progress: Callable[[str], None]) -> BenchReport:
    """Start all engines, run every load on them, and end them.

    Raises:
        BenchError: vLLM is not installed, or an engine fails.
        ModelError: the model cannot be read.
    """
    from neuron_autoport.models.source import load_model_config

    versions = _versions()
    source = load_model_config(asked.model, trust_remote_code=asked.trust_remote_code)
    if source.kind == "model_type":
        what = "A model type has no weights to run."
        raise BenchError(what, asked.model, "name a folder with weights: make demo-model makes one")
    loads = [load_of(kind, batch) for kind in asked.kinds for batch in asked.batches]
    impls = [*asked.impls, *([UNFUSED] if asked.no_rules else [])]
    settings = Settings(
        str(source.folder or source.name), asked.dtype, max(x.longest for x in loads),
        max(asked.batches), asked.eager, asked.trust_remote_code,
    )  # fmt: skip
    memory: dict[str, int] = {}
    results = []
    with engines(settings, impls) as running:
        for load in loads:
            vocabulary = source.text_config.vocab_size
            found, peaks = measure(running, load, asked.rounds, vocabulary, progress)
            results.append(found)
            memory |= peaks
        infos = [EngineInfo(impl=e.impl, ready=e.ready, memory=memory[e.impl]) for e in running]
    return BenchReport(
        model=asked.model, dtype=asked.dtype, eager=asked.eager, rounds=asked.rounds,
        baseline=impls[0], versions=versions, machine=machine(), engines=infos, loads=results,
    )  # fmt: skip


def _versions() -> dict[str, str]:
    import torch
    import transformers

    import neuron_autoport

    try:
        import vllm
    except ImportError:
        step = "pip install neuron-autoport[vllm], or make setup"
        raise BenchError("A benchmark takes vLLM, which is not installed.", None, step) from None
    return {
        "autoport": neuron_autoport.__version__, "vllm": vllm.__version__,
        "transformers": transformers.__version__, "torch": torch.__version__,
    }  # fmt: skip
