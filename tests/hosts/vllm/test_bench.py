"""`vllm bench` takes the flag like every other vLLM command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.vllm.serving import make_model

pytestmark = pytest.mark.serve


def test_bench_latency_runs_our_implementation(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path, vocab_size=10_000)  # the bench draws ids below that
    command = [
        str(Path(sys.executable).with_name("vllm")), "bench", "latency", "--model", str(folder),
        "--model-impl", "neuron-transformers", "--skip-tokenizer-init", "--enforce-eager",
        "--dtype", "float32", "--max-model-len", "64", "--input-len", "8", "--output-len", "4",
        "--batch-size", "2", "--num-iters-warmup", "1", "--num-iters", "1",
    ]  # fmt: skip
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "autoport: fused 22 of 22 sites" in done.stdout + done.stderr
    assert "latency" in done.stdout.lower()
