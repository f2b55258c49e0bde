"""The demo's server process: readiness, early death, a clean end, and what its log tells."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from tools.server import (
    Server,
    ServerFailed,
    free_port,
    fused_sites,
    last_message,
    tail,
    why_it_ended,
)

# Answers 200 to everything. Its child, like a worker, ignores polite signals.
HTTP_SERVER = '''
import http.server, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
child = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
worker = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
worker.stdout.readline()
print("worker", worker.pid, flush=True)
server.serve_forever()
'''

LOG = """\
Triton is not there
(APIServer pid=1) INFO 11-29 16:50:46 [utils.py:347]   █▄█▀ █     █     █     █  model  /m
(Worker pid=9) INFO 11-29 16:52:03 [runner.py:87] Warming up model for the compilation...
(Worker pid=9) WARNING 11-29 16:52:04 [runner.py:88] Something odd
(EngineCore pid=5) INFO 11-29 16:53:04 [shm.py:871] No available shared memory broadcast block
some output of a library
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def http_server(tmp_path: Path) -> tuple[Server, int]:
    port = free_port()
    command = [sys.executable, "-c", HTTP_SERVER, str(port)]
    url = f"http://127.0.0.1:{port}/health"
    return Server(command, tmp_path / "logs" / "server.log", url, os.environ), port


def test_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        assert listener.getsockname()[1] > 1023


def test_ready_then_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    server, port = http_server(tmp_path)
    with server:
        server.wait(60, lambda seconds, message: None)
        assert server.is_ready()
        worker = int(server.read_log().split()[1])
        assert is_alive(worker)
        server.stop(grace=0.5)  # the worker ends only by SIGKILL
    assert not is_alive(worker)
    assert not server.is_ready()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_stopped_when_the_block_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    server = Server(command, tmp_path / "log", "http://127.0.0.1:1/", os.environ)
    with pytest.raises(KeyboardInterrupt), server:
        assert server.process is not None
        pid = server.process.pid
        raise KeyboardInterrupt
    assert not is_alive(pid)


def test_death_is_noticed_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    server = Server(command, tmp_path / "log", "http://127.0.0.1:1/", os.environ)
    with pytest.raises(ServerFailed, match="ended with code 3"), server:
        server.wait(600, lambda seconds, message: None)
    assert server.read_log() == "no such model\n"


def test_time_is_up(tmp_path: Path) -> None:
    seen: list[str] = []
    code = "print('INFO 1 2 [a.py:1] loading', flush=True); import time; time.sleep(600)"
    server = Server([sys.executable, "-c", code], tmp_path / "log", "http://127.0.0.1:1/", {})
    with pytest.raises(ServerFailed, match="not ready after 0 s"), server:
        while not server.read_log():
            time.sleep(0.05)
        server.wait(0.1, lambda seconds, message: seen.append(message))
    assert seen == ["loading"]


def test_last_message_skips_drawings_warnings_and_notices() -> None:
    assert last_message(LOG) == "Warming up model for the compilation..."
    assert last_message("Triton is not there\n") == ""


def test_fused_sites_are_read_from_the_last_total_line() -> None:
    first = "INFO 1 2 [a.py:1] autoport: fused 1 of 9 sites (mlp 1)\n"
    last = (
        "(W pid=1) INFO 1 2 [a.py:1] autoport: fused 151 of 152 sites (gated_mlp 30, o_proj 30)\n"
    )
    assert fused_sites(first + LOG + last + LOG) == (
        151,
        152,
        "autoport: fused 151 of 152 sites (gated_mlp 30, o_proj 30)",
    )
    assert fused_sites(LOG) is None


def test_tail() -> None:
    assert tail("a\nb\nc\n\n", lines=2) == "    b\n    c"


def test_why_it_ended_gives_the_cause_before_what_followed_from_it() -> None:
    log = (
        "(Worker pid=9) ERROR 11-29 17:19:22 [w.py:10]     raise ValueError(\n"
        "(Worker pid=9) ERROR 11-29 17:19:22 [w.py:10] ValueError: too little memory\n"
        "(Worker pid=9) ERROR 11-29 17:19:22 [w.py:10] ValueError: too little memory\n"
        "(EngineCore pid=5) ERROR 11-29 17:19:22 [core.py:15] RuntimeError: Worker failed\n"
        "RuntimeError: Engine core initialization failed. See root cause above. {}\n"
        "  warnings.warn('leaked')\n"
    )
    assert why_it_ended(log) == "    ValueError: too little memory\n    RuntimeError: Worker failed"
    assert why_it_ended("usage: vllm\nno such option\n") == "    usage: vllm\n    no such option"
