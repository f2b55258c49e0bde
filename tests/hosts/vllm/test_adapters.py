"""vLLM's LoRA and pooling work on the rewritten model: fused calls look their layers up at every call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from tests.hosts.vllm.serving import hugging_face_tokens, make_model, prompts, real_model

pytestmark = pytest.mark.serve

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def run(*arguments: str) -> Any:
    script = Path(__file__).with_name("adapters.py")
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(line.removeprefix("RESULT "))


def make_adapter(folder: Path, adapter: Path, merged: Path) -> None:
    """A random adapter on every projection, and the same model with it merged in."""
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    rank, alpha, low = 8, 16, {}
    for name, weight in list(weights.items()):
        if not any(target in name for target in TARGETS):
            continue
        out, inner = weight.shape
        down = torch.randn(rank, inner, generator=generator) / inner**0.5
        up = torch.randn(out, rank, generator=generator) / rank**0.5
        stem = "base_model.model." + name.removesuffix(".weight")
        low |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
        weights[name] = weight + alpha / rank * (up @ down)
    adapter.mkdir()
    save_file(low, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
    config |= {"target_modules": TARGETS, "task_type": "CAUSAL_LM"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    merged.mkdir()
    shutil.copy(folder / "config.json", merged)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})


def test_lora_on_fused_projections_equals_merged_weights(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path)
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    make_adapter(folder, adapter, merged)
    expected = hugging_face_tokens(merged, prompts())
    assert expected != hugging_face_tokens(folder, prompts())
    assert run("lora", str(folder), str(adapter), json.dumps(prompts())) == expected


def test_pooling_gives_the_last_hidden_state() -> None:
    folder = real_model("smollm2-135m")  # pooling wants a tokenizer
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    found = run("embed", str(folder), json.dumps(prompts()))
    for ids, embedding in zip(prompts(), found, strict=True):
        with torch.no_grad():
            last = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        expected = last / last.norm()
        torch.testing.assert_close(torch.tensor(embedding), expected, atol=1e-4, rtol=1e-4)
