"""Level 2 of the served model: vLLM's engine against the reference, on prompts and what it says after them.

The engine runs in a process of its own and reports logits through its public interface. The reference is then
given the engine's own tokens, so that every position, prompt or decoded, has the same tokens before it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuron_autoport.accuracy.explain import Asked, prompt_failures
from neuron_autoport.accuracy.level2 import References
from neuron_autoport.accuracy.logits import Measured, Truth, judge_mode, measure
from neuron_autoport.accuracy.platforms import CPU, Platform
from neuron_autoport.accuracy.prompts import Prompt
from neuron_autoport.accuracy.schema import Failure, Level2, ModeResult
from neuron_autoport.accuracy.teacher import force
from neuron_autoport.errors import AutoportError
from neuron_autoport.models.source import ModelSource

# Logits reported in all by one way of asking; beyond it only the highest of each position are.
_MOST_LOGITS = 9_000_000
_HIGHEST = 1000
_TIMEOUT = 1800
# Process, level, time and place before what vLLM logs.
_PREFIX = re.compile(r"^(\(.*?pid=\d+\)\s*)?([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s?)?")


@dataclass(frozen=True)
class Asking:
    """How the engine is asked. budget: tokens per step, so that longer prompts are prefilled in chunks.

    tp: ranks. place: what serves.
    """

    impl: str
    dtype: str
    steps: int
    budget: int
    without: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    tp: int = 1
    place: Platform = CPU


def ask_engine(source: ModelSource, prompts: list[Prompt], asking: Asking) -> dict[str, Any]:
    """Run the engine; what `engine.py` describes.

    Raises:
        AutoportError: the engine failed; with the cause from its log.
    """
    vocabulary = source.text_config.vocab_size
    positions = sum(len(p.ids) + asking.steps for p in prompts)
    shortest = min(range(len(prompts)), key=lambda i: len(prompts[i].ids))
    everything = vocabulary * positions <= _MOST_LOGITS
    with tempfile.TemporaryDirectory(prefix="autoport-engine-") as folder:
        job, result, log = (Path(folder) / n for n in ("job.json", "result.pt", "log"))
        job.write_text(json.dumps({
            "model": str(source.folder or source.name), "impl": asking.impl, "dtype": asking.dtype,
            "prompts": [list(p.ids) for p in prompts], "steps": asking.steps,
            "budget": asking.budget, "highest": min(_HIGHEST, vocabulary),
            "full": list(range(len(prompts))) if everything else [shortest],
            "trust_remote_code": source.trust_remote_code, "tp": asking.tp,
            "platform": asdict(asking.place),
        }), encoding="utf-8")  # fmt: skip
        command = [sys.executable, "-m", "neuron_autoport.accuracy.engine", str(job), str(result)]
        env = engine_environment(asking.without, asking.folders)
        if asking.tp == 1 and asking.place == CPU:
            # The command is a process of its own already; so vLLM is imported once.
            env.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=env, timeout=_TIMEOUT, check=False,
            )  # fmt: skip
        if done.returncode or not result.is_file():
            raise AutoportError(
                f"The engine did not answer: {cause(log.read_text(errors='replace'))}",
                source.name,
                f"vllm serve {source.name} --model-impl {asking.impl} --dtype {asking.dtype}",
            )
        found: dict[str, Any] = torch.load(result, weights_only=True)
    return found


def engine_environment(without: tuple[str, ...], folders: tuple[str, ...]) -> dict[str, str]:
    """The environment of a vLLM process: rules as asked for, no network, a small KV cache on CPUs."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if without:
        env["AUTOPORT_WITHOUT"] = ",".join(without)
    if folders:
        env["AUTOPORT_RULES"] = os.pathsep.join(os.path.abspath(f) for f in folders)
    return env


def cause(log: str) -> str:
    """The first error a failing vLLM names, or the end of its log."""
    lines = [_PREFIX.sub("", x).strip() for x in log.splitlines() if x.strip()]
    died = "died unexpectedly"  # what vLLM says of a worker, whose own log ends without a cause
    faults = (("Error: " in x and "See root cause" not in x) or died in x for x in lines)
    named = [i for i, fault in enumerate(faults) if fault]
    if not named:
        return "; ".join(lines[-3:])[-500:]
    said = lines[named[0]]
    if "validation error" in said:  # of pydantic, which names the fault below
        below = (x for x in lines[named[0] + 1 :] if "rror, " in x)
        said = next(below, said).partition(" [type=")[0]
    return said[-500:]


def judge_served(
    references: References,
    prompts: list[Prompt],
    answers: dict[str, Any],
    asking: Asking,
    asked: Asked,
) -> tuple[Level2, list[Failure]]:
    """Judge what the engine gave against truth and reference."""
    started = time.perf_counter()
    known: dict[tuple[int, tuple[int, ...]], tuple[Truth, Measured]] = {}
    modes: list[ModeResult] = []
    for way, results in answers.items():
        trio: list[tuple[Truth, Measured, Measured]] = []
        for prompt, found in zip(prompts, results, strict=True):
            key = found["start"], tuple(found["tokens"])
            if key not in known:
                known[key] = _reference(references, prompt.name, *key)
            truth, expected = known[key]
            trio.append((truth, expected, measure(truth, dense(found, truth.logits.shape[-1]))))
        modes.append(judge_mode(way, *(list(x) for x in zip(*trio, strict=True))))
    level2 = Level2(
        passed=all(m.passed for m in modes),
        host=f"vLLM engine, {asking.impl}: {_asked_for(asking)}",
        modes=modes,
        cache=[],
        skipped={},
        seconds=time.perf_counter() - started,
    )
    return level2, prompt_failures(level2, asked)


def _asked_for(asking: Asking) -> str:
    tail = f"{asking.steps} decoded" + (f", {asking.tp} ranks" if asking.tp > 1 else "")
    if asking.place.chunked:
        return f"prefill in steps of {asking.budget} tokens, then {tail}"
    return f"on {asking.place.name}, logits of the last prompt token and of {tail}"


def _reference(
    references: References, name: str, first: int, tokens: tuple[int, ...]
) -> tuple[Truth, Measured]:
    exact, low = (
        force(m, tokens, "whole", chunk=0, start=0).logits[first:-1]
        for m in (references.truth, references.low)
    )
    truth = Truth(name, exact)
    return truth, measure(truth, low)


def dense(found: dict[str, Any], vocabulary: int) -> Tensor:
    """Logits [positions, vocabulary] from lists of ids and logits; NaN where none was reported."""
    table = torch.full((len(found["ids"]), vocabulary), float("nan"))
    for row, (ids, logits) in enumerate(zip(found["ids"], found["logits"], strict=True)):
        table[row, ids.long()] = logits
    return table
