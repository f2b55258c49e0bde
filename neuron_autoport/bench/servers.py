"""`vllm serve` of each implementation, all alive at once, and vLLM's own benchmark client asking one of them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from neuron_autoport.accuracy.serve import end_group
from neuron_autoport.accuracy.served import cause, engine_environment
from neuron_autoport.bench.engines import ENDS_WITHIN, UNFUSED, Answer, BenchError, Settings, end_of
from neuron_autoport.bench.loads import Load
from neuron_autoport.bench.memory import peak_memory
from neuron_autoport.pipeline import EVERYTHING

_VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
_STARTS_WITHIN, _ANSWERS_WITHIN = 900.0, 1800.0


class Server:
    """One implementation behind an address."""

    how: ClassVar[Literal["engine", "server"]] = "server"

    def __init__(self, impl: str, settings: Settings, folder: Path) -> None:
        self.impl, self.settings, self.folder = impl, settings, folder
        self.port = _free_port()
        self.log, self.heard = folder / f"{self.port}.log", 0

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        """From a process that answers to one that has ended.

        Raises:
            BenchError: it ends, or does not answer in time.
        """
        started = time.perf_counter()
        without = (EVERYTHING,) if self.impl == UNFUSED else ()
        with self.log.open("wb") as output:
            self.process = _start(self._command(), output, engine_environment(without, ()))
        try:
            self._wait(started + _STARTS_WITHIN)
            self.ready = time.perf_counter() - started
            self.heard = self.log.stat().st_size
            yield self
        finally:
            end_group(self.process, ENDS_WITHIN)

    def run(self, load: Load, vocabulary: int, seed: int) -> Answer:
        """The client's run: its requests, at most as many at once as the load says."""
        result = self.folder / f"{self.port}-{seed}.json"
        command = [
            *_VLLM, "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{self.port}",
            "--model", self.settings.model, "--dataset-name", "random",
            "--random-input-len", str(load.prompts[0]), "--random-output-len", str(load.answer),
            "--num-prompts", str(len(load.prompts)), "--max-concurrency", str(load.at_once),
            "--ignore-eos", "--temperature", "0", "--seed", str(seed), "--disable-tqdm",
            "--save-result", "--save-detailed", "--result-dir", str(result.parent),
            "--result-filename", result.name,
        ]  # fmt: skip
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_ANSWERS_WITHIN,
                env=engine_environment((), ()),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            what = f"The server did not answer {load.name} within {_ANSWERS_WITHIN:.0f} s."
            raise self._failed(what) from None
        if self.process.poll() is not None:
            raise self._failed(f"The server {end_of(self.process, self.log, self.heard)}")
        if ran.returncode or not result.exists():
            raise self._failed(f"vllm bench serve: {cause(ran.stderr)}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if found["completed"] != len(load.prompts):
            why = next((e for e in found.get("errors", ()) if e), "")
            what = f"{found['completed']} of {len(load.prompts)} requests were answered: {why}"
            raise self._failed(what)
        return Answer(float(found["duration"]), found["generated_texts"])

    def memory(self) -> int:
        """Most bytes its processes have held."""
        return peak_memory(self.process.pid)

    def _failed(self, what: str) -> BenchError:
        return BenchError(what, self.impl, self.settings.alone(self.impl))

    def _command(self) -> list[str]:
        options = self.settings.options(self.impl)
        return [*_VLLM, "serve", *options, "--port", str(self.port), "--host", "127.0.0.1"]

    def _wait(self, until: float) -> None:
        while time.perf_counter() < until:
            if self.process.poll() is not None:
                raise self._failed(f"The server {end_of(self.process, self.log, self.heard)}")
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            time.sleep(0.2)
        raise self._failed(f"The server was not ready within {_STARTS_WITHIN:.0f} s.")


@contextlib.contextmanager
def servers(settings: Settings, impls: list[str], folder: Path) -> Iterator[list[Server]]:
    """Start a server per implementation, one after the other; all end with the block.

    Raises:
        BenchError: one of them does not start.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Server(i, settings, folder).running()) for i in impls]


def _start(command: list[str], output: IO[bytes], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env,
        process_group=0,
    )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
