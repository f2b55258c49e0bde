"""Tiny mixture-of-experts models through vLLM's fused MoE layer: greedy tokens equal Hugging Face eager.

float32, five prompts of different lengths in one batch. The routers are of four kinds (softmax, renormalized or not;
sigmoid with groups, bias and scale; softmax of the chosen logits), the experts packed in halves or interleaved with
biases and clamps, shared experts plain and gated.

Two ranks share the columns of every expert (`--tensor-parallel-size 2`) or the experts themselves
(`--enable-expert-parallel`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.vllm.serving import (
    hugging_face_tokens,
    make_model,
    prompts,
    serve,
    serve_data_parallel,
)

pytestmark = pytest.mark.serve

SMALL_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen3_moe": {**SMALL_EXPERTS, "num_experts": 6, "norm_topk_prob": False},
    "qwen2_moe": {**SMALL_EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 64},
    "glm4_moe": {
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "n_group": 4,
        "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5, "norm_topk_prob": True, "partial_rotary_factor": 0.5,
    },
    "gpt_oss": {
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    # Its experts are given a weighted copy of all rows each, most of them zero.
    "llama4_text": {
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64,
        "intermediate_size_mlp": 96, "no_rope_layers": [0, 0, 0],
        "layer_types": ["full_attention"] * 3,
    },
}  # fmt: skip
# The start-up line of each, written by hand.
LINES = {
    "mixtral": "mlp (MixtralSparseMoeBlock): softmax, top 2 of 6, renormalized; "
    "6 experts 64→96→64, act=silu, gate|up → vLLM's fused MoE layer",
    "qwen3_moe": "mlp (Qwen3MoeSparseMoeBlock): softmax, top 2 of 6; "
    "6 experts 64→48→64, act=silu, gate|up → vLLM's fused MoE layer",
    "qwen2_moe": "mlp (Qwen2MoeSparseMoeBlock): softmax, top 2 of 6; 6 experts 64→48→64, act=silu, "
    "gate|up; shared expert, gated → vLLM's fused MoE layer",
    "glm4_moe": "mlp (Glm4MoeMoE): sigmoid, top 3 of 8, in 2 of 4 groups, chosen with a bias, "
    "renormalized, × 1.5; 8 experts 64→48→64, act=silu, gate|up; shared expert → "
    "vLLM's fused MoE layer",
    "gpt_oss": "mlp (GptOssMLP): top 2 of 6, softmax; 6 experts 64→64→64, act=swish(1.702x), "
    "gate, up interleaved, gate ≤ 7, |up| ≤ 7, up + 1, biases, weights kept transposed → "
    "vLLM's fused MoE layer",
    "llama4_text": "feed_forward (Llama4TextMoe): top 2 of 6, sigmoid, on the experts' input; 6 experts "
    "64→64→64, act=silu, gate|up, weights kept transposed, all of them on every token; shared expert → "
    "vLLM's fused MoE layer",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("moe")


def model_of(model_type: str, folders: Path) -> Path:
    folder = folders / model_type
    return folder if folder.exists() else make_model(model_type, folders, **MODELS[model_type])


@pytest.mark.parametrize(
    "model_type", ["glm4_moe", "gpt_oss", "llama4_text", "qwen2_moe", "qwen3_moe"]
)
def test_greedy_tokens_equal_hugging_face(model_type: str, folders: Path) -> None:
    folder = model_of(model_type, folders)
    served = serve(folder, prompts(), "--eager")
    assert served.tokens == hugging_face_tokens(folder, prompts())
    assert LINES[model_type] in served.log


def test_the_default_compiled_mode_gives_the_same_tokens(folders: Path) -> None:
    folder = model_of("mixtral", folders)
    served = serve(folder, prompts())
    assert served.tokens == hugging_face_tokens(folder, prompts())
    assert LINES["mixtral"] in served.log


@pytest.mark.parametrize("options", [(), ("--ep",)], ids=["columns", "experts"])
def test_two_ranks_give_the_tokens_of_one(options: tuple[str, ...], folders: Path) -> None:
    folder = model_of("glm4_moe", folders)
    served = serve(folder, prompts(), "--eager", "--tp", "2", *options)
    assert served.tokens == hugging_face_tokens(folder, prompts())
    assert LINES["glm4_moe"] in served.log


def test_two_data_parallel_ranks_give_the_tokens_of_one(folders: Path) -> None:
    """vLLM's CPU communicator gathers no rows of several ranks (`all_gatherv` is not there): the experts of
    transformers run, on every rank all of them, and the log says so."""
    folder = model_of("glm4_moe", folders)
    ranks = serve_data_parallel(folder, prompts(), "--eager", "--ep")
    expected = hugging_face_tokens(folder, prompts())
    assert [served.tokens for served in ranks] == [expected[0::2], expected[1::2]]
    for served in ranks:
        assert "cannot gather rows of several data-parallel ranks" in served.log


def test_experts_that_vllm_has_no_activation_for_run_as_transformers_has_them(
    tmp_path: Path,
) -> None:
    """vLLM's own backend would run these experts with SiLU: it does not look at the activation."""
    folder = make_model("mixtral", tmp_path, **MODELS["mixtral"], hidden_act="relu")
    served = serve(folder, prompts(), "--eager")
    assert served.tokens == hugging_face_tokens(folder, prompts())
    assert (
        "transformers' experts run: vLLM's fused experts have no `act=relu, gate|up`" in served.log
    )
