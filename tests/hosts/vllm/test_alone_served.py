"""Models whose requests run alone, in vLLM's engine as it is by itself: compiled, and sharing prefixes if it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.hosts.vllm.serving import engine, hugging_face_tokens, make_model, prompts, serve

pytestmark = pytest.mark.serve

# `rescale_every`: the model halves weights of later layers when it first runs.
MODELS: dict[str, dict[str, Any]] = {
    "rwkv": {"hidden_size": 64, "attention_hidden_size": 64, "rescale_every": 1},
    "recurrent_gemma": {"lru_width": 64, "attention_window_size": 8, "w_init_variance_scale": 0.01},
}
HOW = {
    "rwkv": "it changes its weights as it runs, so nothing is rewritten",
    "recurrent_gemma": "read again from its first token",
}


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_tokens_equal_hugging_face(model_type: str, tmp_path: Path) -> None:
    folder = make_model(model_type, tmp_path, **MODELS[model_type])
    asked = [*prompts(), [7, *prompts()[3][1:]], prompts()[3]]  # one of them twice, one nearly
    served = serve(folder, asked, "--prefix-caching", "--batch-tokens", "16")
    assert "each request runs alone" in served.log and HOW[model_type] in served.log
    assert ("autoport: fused" in served.log) == (model_type != "rwkv")
    assert served.tokens == hugging_face_tokens(folder, asked)


def test_several_ranks_are_refused_with_the_option(tmp_path: Path) -> None:
    folder = make_model("rwkv", tmp_path, **MODELS["rwkv"])
    done = engine(folder, prompts()[:1], "--tp", "2")
    log = done.stdout + done.stderr
    assert done.returncode != 0
    assert "AP411: `--tensor-parallel-size` is not for a model whose requests run alone" in log
