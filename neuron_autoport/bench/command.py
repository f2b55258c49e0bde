"""From what the user asked for to a `BenchReport`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from neuron_autoport.bench.engines import UNFUSED, BenchError, Settings, engines
from neuron_autoport.bench.loads import KINDS, load_of
from neuron_autoport.bench.run import machine, measure
from neuron_autoport.bench.schema import BenchReport, EngineInfo, LoadResult
from neuron_autoport.bench.servers import servers


@dataclass(frozen=True)
class Asked:
    """The options of the command; the first implementation is the baseline. loads: kinds and batches."""

    model: str
    impls: list[str]
    loads: list[tuple[str, int]]
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
    from neuron_autoport.models.plain import check_served
    from neuron_autoport.models.source import load_model_config

    versions = _versions()
    source = load_model_config(asked.model, trust_remote_code=asked.trust_remote_code)
    if source.kind == "model_type":
        what = "A model type has no weights to run."
        raise BenchError(what, asked.model, "name a folder with weights: make demo-model makes one")
    check_served(source)
    loads = [load_of(kind, batch) for kind, batch in asked.loads]
    impls = [*asked.impls, *([UNFUSED] if asked.no_rules else [])]
    settings = Settings(
        str(source.folder or source.name), asked.dtype, max(x.longest for x in loads),
        max(batch for _, batch in asked.loads), asked.eager, asked.trust_remote_code,
    )  # fmt: skip
    vocabulary = source.text_config.vocab_size
    results: list[LoadResult] = []
    infos: list[EngineInfo] = []
    with tempfile.TemporaryDirectory(prefix="autoport-bench-") as folder:
        for start, kinds in ((engines, set(KINDS) - {"serve"}), (servers, {"serve"})):
            mine = [load for load in loads if load.kind in kinds]
            if not mine:
                continue
            with start(settings, impls, Path(folder)) as running:
                results += [measure(running, x, asked.rounds, vocabulary, progress) for x in mine]
                infos += [
                    EngineInfo(impl=e.impl, how=e.how, ready=e.ready, memory=e.memory())
                    for e in running
                ]
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
