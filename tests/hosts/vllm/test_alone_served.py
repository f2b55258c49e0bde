"""Models whose requests run alone, in vLLM's engine as it is by itself: compiled, and sharing prefixes if it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from safetensors.torch import load_file, save_file

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


# A table of experts by token, windows in which tokens are joined in two ways, an indexer, rotary tables of two kinds.
JOINED: dict[str, Any] = {
    "hidden_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 4, "num_key_value_heads": 1,
    "head_dim": 64, "q_lora_rank": 32, "o_lora_rank": 32, "o_groups": 2, "index_n_heads": 4,
    "index_head_dim": 16, "index_topk": 2, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "sliding_window": 4, "num_hash_layers": 2, "intermediate_size": None,
    "layer_types": [
        "sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 6},
    "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
    },
}  # fmt: skip


def test_tables_of_the_checkpoint_and_its_authors_names(tmp_path: Path) -> None:
    """A checkpoint as its authors name its tensors, without the prefix; buffers are tensors of it."""
    folder = make_model("deepseek_v4", tmp_path, **JOINED)
    tensors = load_file(folder / "model.safetensors")
    tables = [name for name in tensors if name.endswith(".tid2eid")]
    assert len(tables) == 2
    generator = torch.Generator().manual_seed(3)
    for name in tables:
        rows = [torch.randperm(8, generator=generator)[:2] for _ in range(128)]
        tensors[name] = torch.stack(rows)
    ends = {"embed_tokens.": "embed.", "hc_head.hc_": "hc_head_"}
    for old, new in {"model.": "", **ends}.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    assert {"embed.weight", "norm.weight", "head.weight", "hc_head_fn"} < set(tensors)
    plain = hugging_face_tokens(folder, prompts())
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    expected = hugging_face_tokens(folder, prompts())
    assert expected != plain  # the tables matter
    served = serve(folder, prompts(), "--batch-tokens", "16")
    assert "each request runs alone" in served.log
    assert served.tokens == expected


def test_several_ranks_are_refused_with_the_option(tmp_path: Path) -> None:
    folder = make_model("rwkv", tmp_path, **MODELS["rwkv"])
    done = engine(folder, prompts()[:1], "--tp", "2")
    log = done.stdout + done.stderr
    assert done.returncode != 0
    assert "AP411: `--tensor-parallel-size` is not for a model whose requests run alone" in log
