"""Runs that are interrupted, and two at once on one cache: nothing half-written, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL

AUTOPORT = [sys.executable, "-m", "neuron_autoport.cli.app"]

WAITS = """import os
import time

from torch import nn


class Nothing(nn.Module):
    pass


try:
    os.open({pipe!r}, os.O_RDONLY)
    while True:  # no single call that waits: a signal just before it would be seen only after it
        time.sleep(0.05)
finally:  # what a command started ends so
    open({left!r}, "w").close()
"""


def started(arguments: list[str], cache: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "COLUMNS": "200", "NO_COLOR": "1"}
    env.pop("AUTOPORT_CACHE", None)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*AUTOPORT, *arguments], env=env, stdout=pipe, stderr=pipe, text=True,
        preexec_fn=_can_be_interrupted,
    )  # fmt: skip


def _can_be_interrupted() -> None:
    """What a shell starts with `&`, such as these tests, ignores interrupts, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def opened(pipe: Path, run: subprocess.Popen[str]) -> int:
    """The pipe, open for writing as soon as the command reads from it."""
    while run.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.05)
    raise AssertionError(run.communicate())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_the_old_page_and_no_traceback(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()
    page.write_text("old", encoding="utf-8")
    # The user's own file waits at a pipe: once that can be written, the command is surely under way.
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    own = folder / "wait.py"
    left = tmp_path / "left"
    own.write_text(WAITS.format(pipe=str(pipe), left=str(left)), encoding="utf-8")
    arguments = [f"{own}:Nothing", "--input", "2,8,64", "--trust-remote-code", "--html", str(page)]
    run = started(["inspect", *arguments], tmp_path)
    writer = opened(pipe, run)
    run.send_signal(number)
    out, err = run.communicate(timeout=120)
    os.close(writer)
    assert run.returncode == 128 + number and left.exists()
    assert "interrupted" in err and "Traceback" not in err and out == ""
    assert page.read_text(encoding="utf-8") == "old"
    assert list(page.parent.iterdir()) == [page]


def test_two_runs_at_once_on_one_cache_give_the_same(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    runs = [started(["inspect", str(folder), "--prove", "--json"], cache) for _ in range(2)]
    reports = []
    for run in runs:
        out, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
        report = json.loads(out)
        report.pop("seconds")
        report["proof"].pop("from_cache")
        reports.append(report)
    assert reports[0] == reports[1]
    assert not [p for p in cache.rglob("*") if p.name.startswith(".") or p.suffix == ".tmp"]


def test_a_page_in_a_folder_that_cannot_be_written_is_explained(folder: Path) -> None:
    for target, words in (
        ("nowhere/page.html", "mkdir -p"),
        (".", "name another file"),
        ("/proc/page.html", "name another file"),
    ):
        run = started(["inspect", str(folder), "--html", target], folder)
        out, err = run.communicate(timeout=120)
        assert run.returncode == 2 and out == ""
        assert "cannot be written" in err and words in err and "Traceback" not in err


def test_a_full_disk_leaves_no_page(folder: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    with full.open("w") as out:
        done = subprocess.run(
            [*AUTOPORT, "inspect", str(folder), "--json"], stdout=out, stderr=subprocess.PIPE,
            text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "No space left" in done.stderr and "Traceback" not in done.stderr
