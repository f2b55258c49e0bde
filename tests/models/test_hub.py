"""A hub that nobody can reach is told at once; one that is slow or busy keeps its retries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from neuron_autoport.models.hub import hub_answers

ASK = """
from neuron_autoport.errors import ModelError
from neuron_autoport.models.source import load_model_config
try:
    load_model_config("some-org/some-model")
except ModelError as error:
    print(error.text())
"""


class Busy(BaseHTTPRequestHandler):
    asked = 0

    def do_HEAD(self) -> None:
        Busy.asked += 1
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """A server in the hub's place, and an empty cache."""
    server = HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    address = f"http://127.0.0.1:{server.server_port}/config.json"
    monkeypatch.setattr("neuron_autoport.models.hub.hf_hub_url", lambda *_: address)
    yield server
    server.shutdown()
    server.server_close()


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_busy_hub_is_left_to_the_download(hub: HTTPServer) -> None:
    before = Busy.asked
    assert hub_answers("some-org/some-model", "config.json")
    assert Busy.asked == before + 1


def test_a_slow_hub_is_left_to_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr("neuron_autoport.models.hub.get_hf_file_metadata", slow)
    assert hub_answers("some-org/some-model", "config.json")


def test_what_lies_in_the_cache_needs_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("neuron_autoport.models.hub.get_hf_file_metadata", nobody)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert not hub_answers("some-org/some-model", "config.json")
    folder = tmp_path / "models--some-org--some-model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    (folder / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (folder / "snapshots" / ("a" * 40) / "config.json").write_text("{}")
    assert hub_answers("some-org/some-model", "config.json")


def test_no_hub_is_told_without_retries(tmp_path: Path) -> None:
    """Nobody listens there. The hub's own client waits 2, 4, 8 and 8 seconds between its tries."""
    environment = {
        **os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{closed_port()}", "NO_PROXY": "127.0.0.1",
        "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(tmp_path),
    }  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    assert time.monotonic() - started < 20 and "Retrying" not in done.stderr
    what, where, step = done.stdout.splitlines()
    assert what.startswith("The hub cannot be reached (offline)")
    assert where == "  at: some-org/some-model"
    assert step == "  try: check the network or give a local folder: autoport inspect FOLDER"
