"""The core works where vLLM is not installed: inspect, and a whole proof, with the import blocked."""

from __future__ import annotations

import os
import subprocess
import sys

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vllm":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_inspect_needs_no_vllm() -> None:
    out = run(
        "sys.argv = ['autoport', 'inspect', 'llama']\n"
        "from neuron_autoport.cli.app import main\n"
        "main()\n"
    )
    assert "fused 225 of 225 sites" in out


def test_proof_needs_no_vllm() -> None:
    out = run(
        "from transformers import Qwen3Config\n"
        "from neuron_autoport.pipeline import proved_port\n"
        "from neuron_autoport.nf import backend\n"
        "proved = proved_port(Qwen3Config(), use_cache=False)\n"
        "print(backend(), len(proved.proof.dropped), proved.proof.logits.passed)\n"
    )
    assert out.split() == ["torch", "0", "True"]
