"""A vLLM server for level 1: started in a process group of its own, waited for, and always stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neuron_autoport.accuracy.platforms import CPU, Platform
from neuron_autoport.accuracy.served import cause, engine_environment
from neuron_autoport.errors import AutoportError

_START_TIMEOUT = 900.0
_GRACE = 20.0


@contextlib.contextmanager
def vllm_server(
    model: str,
    *,
    impl: str,
    dtype: str,
    max_model_len: int,
    tp: int = 1,
    place: Platform = CPU,
    without: tuple[str, ...] = (),
    folders: tuple[str, ...] = (),
    waiting: Callable[[float], None] = lambda seconds: None,
) -> Iterator[str]:
    """Serve a model; gives the base URL.

    Args:
        tp: ranks. place: what serves. waiting: called about twice a second with the seconds since the start.

    Raises:
        AutoportError: the server ended, or was not ready in time; with the cause from its log.
    """
    port = _free_port()
    command = [
        str(Path(sys.executable).with_name("vllm")), "serve", model, "--model-impl", impl,
        "--dtype", dtype, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model",
        "--max-model-len", str(max_model_len), "--max-num-seqs", "8",
        "--tensor-parallel-size", str(tp), "--max-logprobs", "5",
        *(["--enforce-eager"] if place.eager else []),
        *([] if place.chunked else [
            "--no-enable-prefix-caching", "--max-num-batched-tokens", str(max_model_len)
        ]),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="autoport-serve-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=engine_environment(without, folders), start_new_session=True,
            )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(process, url, log, " ".join(command), waiting)
            yield url
        finally:
            end_group(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(
    process: subprocess.Popen[bytes],
    url: str,
    log: Path,
    command: str,
    waiting: Callable[[float], None],
) -> None:
    started = time.monotonic()
    while not _ready(url):
        seconds = time.monotonic() - started
        if process.poll() is not None or seconds > _START_TIMEOUT:
            why = cause(log.read_text(errors="replace"))
            ended = (
                "ended" if process.poll() is not None else f"was not ready after {seconds:.0f} s"
            )
            raise AutoportError(f"The server {ended}: {why}", None, command)
        waiting(seconds)
        time.sleep(0.5)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def end_group(process: subprocess.Popen[Any], grace: float = _GRACE) -> None:
    """End a process that leads a group and all below it: SIGINT, then SIGTERM, then SIGKILL.

    Args:
        grace: seconds after each.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
