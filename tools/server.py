"""Starts a server in a process group of its own, waits until it answers, and always stops it.

Knows nothing about the demo: a command, its log file, a URL that answers 200 when it is ready, and
the few things that can be read in vLLM's log.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

# "(EngineCore pid=12) INFO 11-29 16:40:01 [core.py:71] Initializing" -> "Initializing"
LOG_LINE = re.compile(r"^(?:\(.*?\) )?INFO \S+ \S+ \[[^\]]*\] (.*)$")
# Drawn letters, the list of routes, and a notice that comes every minute of a long compilation.
UNTELLING = re.compile(r"^[\s█▄▀]|^$|^Route: |^No available shared memory")
# "(Worker pid=9) ERROR 11-29 16:40:01 [worker.py:10] ValueError: why" or "ValueError: why"
ERROR_LINE = re.compile(
    r"^(?:(?:\(.*?\) )?ERROR \S+ \S+ \[[^\]]*\] )?([\w.]+(?:Error|Exception|Failed): .*)$"
)
FUSED_LINE = re.compile(r"autoport: fused (\d+) of (\d+) sites.*")


class ServerFailed(Exception):
    """The server ended by itself, or was not ready in time."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_message(log: str) -> str:
    """What vLLM last said it was doing, without date and place; empty if it said nothing yet.

    Warnings are left out: they say little about how far the start has come.
    """
    for line in reversed(log.splitlines()):
        match = LOG_LINE.match(line)
        if match and not UNTELLING.match(match.group(1)):
            return match.group(1)
    return ""


def fused_sites(log: str) -> tuple[int, int, str] | None:
    """Fused and total number of sites and the whole statement, from the host's total line."""
    matches = list(FUSED_LINE.finditer(log))
    if not matches:
        return None
    return int(matches[-1].group(1)), int(matches[-1].group(2)), matches[-1].group(0).strip()


def why_it_ended(log: str, most: int = 3) -> str:
    """The last different errors in `log`, first one first, or its end if there are none; indented.

    A failing vLLM prints one error from each of its processes, the cause first, each with a long
    traceback; the end of the log alone says only that some process failed.
    """
    found = [match.group(1) for line in log.splitlines() if (match := ERROR_LINE.match(line))]
    different = list(dict.fromkeys(line for line in found if "See root cause above" not in line))
    if not different:
        return tail(log)
    return "\n".join(f"    {line[:400]}" for line in different[-most:])


def tail(log: str, lines: int = 20) -> str:
    """The last lines of `log`, indented."""
    return "\n".join(f"    {line}" for line in log.rstrip().splitlines()[-lines:])


class Server:
    """A server process and all that it starts; use it in a `with` statement.

    Args:
        command: program and arguments.
        log: file for stdout and stderr; written anew.
        ready_url: answers 200 when the server is ready.
        env: the server's whole environment.
    """

    def __init__(
        self, command: Sequence[str], log: Path, ready_url: str, env: Mapping[str, str]
    ) -> None:
        self.command = list(command)
        self.log = log
        self.ready_url = ready_url
        self.env = dict(env)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def read_log(self) -> str:
        """All that the server has printed so far."""
        return self.log.read_text(errors="replace")

    def is_ready(self) -> bool:
        """Whether the server answers that it is ready."""
        try:
            with urllib.request.urlopen(self.ready_url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, timeout: float, progress: Callable[[float, str], None]) -> float:
        """Wait until the server is ready and return the seconds that took.

        Args:
            timeout: seconds.
            progress: called about twice a second with the seconds so far and vLLM's last message.

        Raises:
            ServerFailed: the process ended, or the time is up.
        """
        assert self.process is not None, "enter the `with` block first"
        start = time.monotonic()
        while True:
            elapsed = time.monotonic() - start
            code = self.process.poll()
            if code is not None:
                raise ServerFailed(f"it ended with code {code} after {elapsed:.0f} s")
            if self.is_ready():
                return elapsed
            if elapsed > timeout:
                raise ServerFailed(f"it was not ready after {timeout:.0f} s")
            progress(elapsed, last_message(self.read_log()))
            time.sleep(0.5)

    def stop(self, grace: float = 20) -> None:
        """End the whole process group: SIGINT, then SIGTERM, then SIGKILL, `grace` seconds each."""
        if self.process is None:
            return
        group = self.process.pid  # start_new_session makes the process its group's leader
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline:
                self.process.poll()  # reaps the leader; a zombie would keep the group alive
                try:
                    os.killpg(group, 0)
                except ProcessLookupError:
                    self.process = None
                    return
                time.sleep(0.1)


def progress_line() -> Callable[[float, str], None]:
    """Shows progress: one line that is rewritten on a terminal, else a line every ten seconds."""
    shown = -10.0

    def show(elapsed: float, message: str) -> None:
        nonlocal shown
        if sys.stdout.isatty():
            width = os.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{f'  {elapsed:4.0f} s  {message}'[:width]}", end="", flush=True)
        elif elapsed - shown >= 10:
            shown = elapsed
            print(f"  {elapsed:4.0f} s  {message}"[:160], flush=True)

    return show
