"""Helpers of the serving tests: tiny random models in folders, Hugging Face's tokens, vLLM's tokens."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from neuron_autoport.models.weights import adversarial_
from tools.prepare_model import prepare

# vLLM's CPU attention takes head sizes that are multiples of 32 (80 and 112 beside).
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What each architecture is here for; windows are shorter than the longest prompt.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 8},
    "gemma3_text": {
        "num_hidden_layers": 6, "head_dim": 256, "sliding_window": 8, "query_pre_attn_scalar": 100,
    },
    "granite": {
        "head_dim": None, "hidden_size": 128, "embedding_multiplier": 3.0,
        "attention_multiplier": 0.11, "residual_multiplier": 0.4, "logits_scaling": 5.0,
    },
    "phi3": {"head_dim": None, "hidden_size": 128},
    "stablelm": {"head_dim": None, "hidden_size": 128, "partial_rotary_factor": 0.25},
    "opt": {
        "hidden_size": 128, "ffn_dim": 96, "word_embed_proj_dim": 128, "head_dim": None,
        "num_key_value_heads": None, "intermediate_size": None,
    },
}  # fmt: skip


# Read before the tests get a cache of their own: converting a model takes a minute.
_USER_CACHE = os.environ.get("AUTOPORT_CACHE")


def real_model(name: str) -> Path:
    """The prepared folder of a demo model, in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        if _USER_CACHE is None:
            patch.delenv("AUTOPORT_CACHE", raising=False)
        else:
            patch.setenv("AUTOPORT_CACHE", _USER_CACHE)
        return prepare(name, lambda line: None)


def prompts(vocabulary: int = 128) -> list[list[int]]:
    """Five prompts of different lengths, one longer than every window, in one batch."""
    generator = torch.Generator().manual_seed(7)
    lengths = (1, 5, 12, 30, 3)
    return [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def make_model(model_type: str, folder: Path, **changes: Any) -> Path:
    """A tiny random model of this type as a Hugging Face folder, float32, adversarial weights."""
    wanted = {**_SIZES, **MODELS.get(model_type, {}), **changes}
    sizes = {k: v for k, v in wanted.items() if v is not None}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    adversarial_(model)
    target = folder / model_type
    model.save_pretrained(target)
    return target


def hugging_face_tokens(
    folder: Path, asked: list[list[int]], new: int = 12, *, trust: bool = False
) -> list[list[int]]:
    """Greedy tokens of Hugging Face eager in float32, one prompt at a time, no padding."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", trust_remote_code=trust
    ).eval()
    found = []
    for ids in asked:
        tokens = torch.tensor([ids])
        with torch.no_grad():
            for _ in range(new):
                logits = model(input_ids=tokens, use_cache=False).logits[0, -1]
                tokens = torch.cat([tokens, logits.argmax().view(1, 1)], dim=1)
        found.append(tokens[0, len(ids) :].tolist())
    return found


@dataclass(frozen=True)
class Served:
    """What one engine run gave: tokens per prompt, log probabilities, and its log."""

    tokens: list[list[int]]
    logprobs: list[list[dict[str, float]]]
    log: str

    @property
    def fused(self) -> tuple[int, int]:
        """(fused, total) sites of the start-up line."""
        found = re.search(r"autoport: fused (\d+) of (\d+) sites", self.log)
        assert found, self.log[-4000:]
        return int(found[1]), int(found[2])


def serve(
    folder: Path,
    asked: list[list[int]],
    *options: str,
    timeout: int = 600,
    rank: dict[str, str] | None = None,
) -> Served:
    """What `generate.py` gives in a process of its own.

    Args:
        rank: more of its environment, for one of several data-parallel ranks.
    """
    done = engine(folder, asked, *options, timeout=timeout, rank=rank)
    log = done.stdout + done.stderr
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, f"the engine gave no result:\n{log[-6000:]}"
    result = json.loads(line.removeprefix("RESULT "))
    return Served(result["tokens"], result["logprobs"], log)


def engine(
    folder: Path,
    asked: list[list[int]],
    *options: str,
    timeout: int = 600,
    rank: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `generate.py` in a process of its own, to whatever end; one rank has its engine in that same process."""
    script = Path(__file__).with_name("generate.py")
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **(rank or {}),
    }
    if "--tp" in options:  # each rank on a core of its own
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    elif (
        rank is None
    ):  # vLLM is imported once; engines in a process apart are in the tests over HTTP
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder), json.dumps(asked), *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def serve_data_parallel(folder: Path, asked: list[list[int]], *options: str) -> list[Served]:
    """Two data-parallel ranks, each with every other prompt and a core of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def one(rank: int) -> Served:
        environment = {
            "VLLM_DP_RANK": str(rank),
            "VLLM_DP_RANK_LOCAL": str(rank),
            "VLLM_DP_SIZE": "2",
            "VLLM_DP_MASTER_IP": "127.0.0.1",
            "VLLM_DP_MASTER_PORT": str(port),
            "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        }
        return serve(folder, asked[rank::2], *options, rank=environment)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, (0, 1)))


_ASK = """
import sys
from vllm.engine.arg_utils import EngineArgs
try:
    EngineArgs(
        model=sys.argv[1], model_impl="neuron-transformers", skip_tokenizer_init=True
    ).create_model_config()
except Exception as error:
    print("REFUSED", error)
"""


def refusal(folder: Path) -> str:
    """What vLLM says when it reads the configuration of a model it is not to serve."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert "REFUSED" in done.stdout, done.stdout + done.stderr[-4000:]
    return done.stdout.partition("REFUSED")[2]
