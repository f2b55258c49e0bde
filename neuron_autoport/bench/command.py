"""From what the user asked for to a `BenchReport`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_autoport.bench.engines import UNFUSED, BenchError, Settings, engines
from neuron_autoport.bench.loads import KINDS, Load, load_of
from neuron_autoport.bench.run import environment, machine, measure
from neuron_autoport.bench.schema import BenchReport, EngineInfo, LoadResult
from neuron_autoport.bench.servers import servers

if TYPE_CHECKING:
    from neuron_autoport.models.source import ModelSource


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
    _check_positions(source, loads)
    if any(load.kind == "serve" for load in loads):
        _check_tokenizer(source)
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
        baseline=impls[0], versions=versions, machine=machine(), environment=environment(),
        engines=infos, loads=results,
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


def _check_positions(source: ModelSource, loads: list[Load]) -> None:
    """Where the configuration alone says how many there are; with scaled positions vLLM decides."""
    config = source.text_config
    known = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    scaled = rope.get("rope_type", "default") != "default"
    by_layer = any(isinstance(value, dict) for value in rope.values())
    if not isinstance(known, int) or scaled or by_layer:
        return
    too_long = next((load for load in loads if load.longest > known), None)
    if too_long is not None:
        fitting = [kind for kind in KINDS if load_of(kind, 1).longest <= known]
        step = f"--load {','.join(fitting)}" if fitting else None
        what = f"{too_long.name} takes {too_long.longest} positions, the model has {known}."
        raise BenchError(what, source.name, step)


def _check_tokenizer(source: ModelSource) -> None:
    """The benchmark client writes its prompts as text."""
    from transformers import AutoTokenizer

    from neuron_autoport.models.failures import one_line

    try:
        AutoTokenizer.from_pretrained(
            source.folder or source.name, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        what = f"A served load is asked as text, and there is no tokenizer: {one_line(error)}"
        raise BenchError(what, source.name, "--load prefill,decode,mixed") from None
