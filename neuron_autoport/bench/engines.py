"""The engines that are compared: a process each, all alive at once, asked by turns."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from neuron_autoport.accuracy.served import cause, engine_environment
from neuron_autoport.bench.loads import Load
from neuron_autoport.bench.memory import peak_memory
from neuron_autoport.errors import AutoportError
from neuron_autoport.pipeline import EVERYTHING

OURS = "neuron-transformers"
UNFUSED = f"{OURS}, no rules"


class BenchError(AutoportError):
    """An engine could not be started, or ended."""


@dataclass(frozen=True)
class Answer:
    """To one load. said: tokens or text of each prompt, to be compared."""

    seconds: float
    said: list[Any]


@dataclass(frozen=True)
class Settings:
    """The same for every engine. eager: no torch.compile."""

    model: str
    dtype: str
    longest: int
    sequences: int
    eager: bool
    trust_remote_code: bool = False

    def arguments(self, impl: str) -> dict[str, Any]:
        """What `LLM` is made with."""
        return {
            "model": self.model, "model_impl": OURS if impl == UNFUSED else impl,
            "dtype": self.dtype, "max_model_len": self.longest, "max_num_seqs": self.sequences,
            "enforce_eager": self.eager, "enable_prefix_caching": False, "seed": 0,
            "skip_tokenizer_init": True, "trust_remote_code": self.trust_remote_code,
        }  # fmt: skip


class Engine:
    """One implementation, ready to be asked."""

    how: ClassVar[Literal["engine", "server"]] = "engine"

    def __init__(
        self, impl: str, process: subprocess.Popen[str], answers: IO[str], log: Path
    ) -> None:
        self.impl, self.process, self.answers, self.log = impl, process, answers, log
        self.ready = float(self._read()["ready"])

    def run(self, load: Load, vocabulary: int, seed: int) -> Answer:
        """All prompts of the load in one batch."""
        assert self.process.stdin is not None
        asked = {"prompts": load.draw(vocabulary, seed), "answer": load.answer}
        with contextlib.suppress(BrokenPipeError):  # it ended: reading says why
            print(json.dumps(asked), file=self.process.stdin, flush=True)
        found = self._read()
        return Answer(found["seconds"], found["tokens"])

    def memory(self) -> int:
        """Most bytes its processes have held."""
        return peak_memory(self.process.pid)

    def _read(self) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            self.process.wait()
            why = cause(self.log.read_text(encoding="utf-8", errors="replace"))
            raise BenchError(f"The engine ended: {why}", self.impl, "autoport doctor")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def engines(settings: Settings, impls: list[str], folder: Path) -> Iterator[list[Engine]]:
    """Start an engine per implementation, one after the other; all end with the block.

    Raises:
        BenchError: one of them does not start.
    """
    with contextlib.ExitStack() as stack:
        made = []
        for number, impl in enumerate(impls):
            without = (EVERYTHING,) if impl == UNFUSED else ()
            log = folder / f"{number}.log"
            made.append(stack.enter_context(_engine(settings, impl, without, log)))
        yield made


@contextlib.contextmanager
def _engine(settings: Settings, impl: str, without: tuple[str, ...], log: Path) -> Iterator[Engine]:
    reading, writing = os.pipe()
    arguments = json.dumps(settings.arguments(impl))
    command = [sys.executable, "-m", "neuron_autoport.bench.worker", arguments, str(writing)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True,
            env=engine_environment(without, ()), pass_fds=(writing,),
        )  # fmt: skip
    os.close(writing)
    try:
        with os.fdopen(reading) as answers:
            yield Engine(impl, process, answers, log)
    finally:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
