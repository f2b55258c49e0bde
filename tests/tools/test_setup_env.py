"""The set-up: what it says when something is missing, and when it is due again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import setup_env

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the set-up's files; the set-up works there instead of here."""
    (tmp_path / "tools").mkdir()
    for name in ("pyproject.toml", "tools/setup_env.py", "tools/metadata_wheel.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    venv = tmp_path / ".venv"
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "VENV", venv)
    monkeypatch.setattr(setup_env, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(setup_env, "LOG", venv / "setup.log")
    monkeypatch.setattr(setup_env, "STAMP", venv / "setup.stamp")
    return tmp_path


def test_no_python_that_is_new_enough() -> None:
    result = subprocess.run(
        ["bash", str(ROOT / "tools" / "setup.sh")],
        env={"PATH": os.environ["PATH"], "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "no Python 3.11 or newer found" in result.stderr
    assert "PYTHON=/bin/false is older than 3.11, or does not run" in result.stderr
    assert "apt-get install python3.11" in result.stderr


def test_a_failing_step_is_named_with_reason_log_and_advice(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        setup_env.run([sys.executable, "-c", "print('disk is full'); raise SystemExit(9)"], "tidy")

    monkeypatch.setattr(setup_env, "STEPS", [("first", lambda: None), ("second", fail)])
    assert setup_env.main() == 1
    out, err = capsys.readouterr()
    assert "[1/2] first ... done" in out
    assert "[2/2] second ... failed" in out
    assert "set-up stopped at step 2 (second)" in err
    assert "ended with code 9" in err
    assert "    disk is full" in err
    assert "try: tidy" in err
    assert not setup_env.STAMP.exists()


def test_runs_once_until_something_changes(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(setup_env, "STEPS", [("only", lambda: calls.append("run"))])
    assert setup_env.main() == 0
    assert setup_env.main() == 0
    assert calls == ["run"]
    with (clone / "pyproject.toml").open("a") as project:
        project.write("\n# changed\n")
    assert setup_env.main() == 0
    assert calls == ["run", "run"]


def test_an_old_environment_is_not_touched(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "ask", lambda code: "3 9")
    with pytest.raises(setup_env.StepFailed, match=r"\.venv has Python 3\.9") as failure:
        setup_env.make_environment()
    assert "make clean" in failure.value.advice


def test_a_python_without_ensurepip(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "PYTHON", clone / "absent")
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(setup_env.StepFailed, match="no module ensurepip") as failure:
        setup_env.make_environment()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert failure.value.advice.startswith(f"sudo apt-get install python{version}-venv")


@pytest.mark.parametrize("found_here", [True, False])
def test_torch_comes_from_pytorchs_index_only_when_pip_has_no_cpu_build(
    clone: Path, monkeypatch: pytest.MonkeyPatch, found_here: bool
) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(*arguments: str, advice: str | None = None) -> None:
        calls.append(arguments)
        if not found_here and len(calls) == 1:
            raise setup_env.StepFailed("no matching distribution", "")

    monkeypatch.setattr(setup_env, "pip", pip)
    monkeypatch.setattr(setup_env.sys, "platform", "linux")
    setup_env.install_torch()
    plain = ("install", "torch==2.13.0+cpu")
    index = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
    assert calls == ([plain] if found_here else [plain, plain + index])
