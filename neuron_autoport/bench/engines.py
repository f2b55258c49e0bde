"""The engines that are compared: a process each, all alive at once, asked by turns."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from neuron_autoport.accuracy.serve import end_group
from neuron_autoport.accuracy.served import cause, engine_environment
from neuron_autoport.bench.loads import Load
from neuron_autoport.bench.memory import peak_memory
from neuron_autoport.errors import AutoportError
from neuron_autoport.pipeline import EVERYTHING

OURS = "neuron-transformers"
UNFUSED = f"{OURS}, no rules"
_WORKER = [sys.executable, "-m", "neuron_autoport.bench.worker"]
ENDS_WITHIN = 4.0  # seconds after each signal
# What is said of a process that the system killed, and what vLLM says of one of its own.
_NO_MEMORY = "as a system does that is out of memory: all engines are alive at once"
_KILLED = "exit code: -9"
_GRACE = 10.0  # seconds for an engine to end by itself


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

    def options(self, impl: str) -> list[str]:
        """The same as arguments of `vllm serve`."""
        return [
            self.model, "--model-impl", OURS if impl == UNFUSED else impl, "--dtype", self.dtype,
            "--max-model-len", str(self.longest), "--max-num-seqs", str(self.sequences),
            "--no-enable-prefix-caching", "--seed", "0",
            *(["--enforce-eager"] if self.eager else []),
            *(["--trust-remote-code"] if self.trust_remote_code else []),
        ]  # fmt: skip

    def alone(self, impl: str) -> str:
        """The command that starts this implementation with nothing beside it."""
        without = f"AUTOPORT_WITHOUT='{EVERYTHING}' " if impl == UNFUSED else ""
        return f"{without}vllm serve {shlex.join(self.options(impl))}"


class Engine:
    """One implementation, ready to be asked."""

    how: ClassVar[Literal["engine", "server"]] = "engine"

    def __init__(
        self,
        impl: str,
        settings: Settings,
        process: subprocess.Popen[str],
        answers: IO[str],
        log: Path,
    ) -> None:
        self.impl, self.settings = impl, settings
        self.process, self.answers, self.log = process, answers, log
        self.heard = 0  # bytes of the log
        self.ready = float(self._read()["ready"])
        self.heard = log.stat().st_size  # what it warned of on its way is no cause of its end

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
            why = end_of(self.process, self.log, self.heard)
            raise BenchError(f"The engine {why}", self.impl, self.settings.alone(self.impl))
        found: dict[str, Any] = json.loads(line)
        return found


def end_of(process: subprocess.Popen[Any], log: Path, heard: int) -> str:
    """How a process ended that should not have: by which signal, and what its log names as the cause.

    Args:
        heard: so many bytes of the log are older.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE)
    code, said = process.returncode or 0, log.read_bytes()[heard:].decode(errors="replace")
    why = cause(said)
    if code >= 0:
        memory = f" ({_NO_MEMORY})" if _KILLED in why else ""  # one of its own processes was
        return f"ended: {why}{memory}"
    number = -code
    memory = f", {_NO_MEMORY}" if number == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(number).name}{memory}: {why}"


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
    # A group of its own, to be ended whole, but not a session: Linux shares a core by sessions, and the waiting
    # processes of the other engines, which only yield, would take a half of it from the one that is measured.
    reading, writing = os.pipe()
    arguments = json.dumps(settings.arguments(impl))
    command = [*_WORKER, arguments, str(writing)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True,
            env=engine_environment(without, ()), pass_fds=(writing,), process_group=0,
        )  # fmt: skip
    os.close(writing)
    grace = 0.0  # it reads nothing before it is ready
    try:
        with os.fdopen(reading) as answers:
            engine = Engine(impl, settings, process, answers, log)
            grace = _GRACE
            yield engine
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace)
        end_group(process, ENDS_WITHIN)
