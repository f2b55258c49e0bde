"""QK-norm and RoPE inside `NF.qkv_proj`: where they are, that they are right, and why they are apart elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from neuron_autoport import kernels as NK
from neuron_autoport.hosts.neuron.fused_heads import heads_limit
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from tests.hosts.neuron.checkpoints import MODEL, small, write
from tests.neuron.runner import generate

# Four query heads and two key/value heads of 32: 256 columns of a hidden size of 256, the most the kernel takes.
FITS = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
# Of the step's calls, by phase: with two key/value heads no step is one call.
PROMPTS, TOKENS = (6, 45, 31), 4


def fitting(model_type: str) -> Any:
    """A small configuration of the type with these sizes."""
    if model_type == "hunyuan_v1_dense":  # its own defaults make no model
        sizes = {"num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 97}
        made = AutoConfig.for_model(
            model_type, max_position_embeddings=256, dtype=torch.float32, **sizes, **FITS
        )
        return made
    more = {"query_pre_attn_scalar": 24} if model_type.startswith("gemma") else {}
    return small(model_type, **FITS, **more)


@pytest.mark.parametrize(
    ("model_type", "norm"),
    [
        ("mistral", None),
        ("qwen3", "pre"),
        ("hunyuan_v1_dense", "post"),  # after the rotation
        ("gemma2", None),  # soft-capped scores: no step is in one call, the rotation still is
        ("gemma3_text", "pre"),  # 1 + w norms, windows, two sets of tables
        ("gpt_oss", None),  # sinks and biases
    ],
)
def test_they_are_in_the_call(model_type: str, norm: str | None, tmp_path: Path) -> None:
    saved = write(tmp_path, fitting(model_type))
    prompts = saved.prompts(*PROMPTS)
    made = generate(MODEL, tmp_path, prompts, TOKENS, compile=False, semantics="kernel")
    assert made.tokens == [saved.greedy(p, TOKENS) for p in prompts]
    calls = made.log.of("qkv_proj")
    assert {c.verdict for c in calls} == {"kernel"}
    assert {c.step.partition(" ")[0] for c in calls} >= {"prefill", "decode"}
    assert all("cos_cache" in c.shapes for c in calls)
    gammas = {f"qk_norm_{norm}_rope_{side}_gamma" for side in "qk"} if norm else set()
    for call in calls:
        assert {name for name in call.shapes if "qk_norm" in name} == gammas


def test_nothing_of_them_is_left_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a call of its own")

    saved = write(tmp_path, small("qwen3", **FITS))
    prompts = saved.prompts(9)
    build(saved.config)  # the self-test tries the class's own forward too; its verdict is kept
    for name in ("rope", "qk_norm_rope"):
        monkeypatch.setattr(NK, name, never)
    made = generate(MODEL, tmp_path, prompts, TOKENS, compile=False)
    assert made.tokens == [saved.greedy(p, TOKENS) for p in prompts]


def test_compiled_without_recompilation(tmp_path: Path) -> None:
    saved = write(tmp_path, small("qwen3", **FITS))
    prompts = saved.prompts(6, 45)
    made = generate(MODEL, tmp_path, prompts, TOKENS, batch=2, buckets=(128, 256))
    assert made.tokens == [saved.greedy(p, TOKENS) for p in prompts]


def test_a_chunk_goes_through_the_cache(tmp_path: Path) -> None:
    saved = write(tmp_path, small("qwen3", max_position_embeddings=2048, **FITS))
    prompts = saved.prompts(600, 20)
    made = generate(MODEL, tmp_path, prompts, 3, compile=False, chunk=512, max_model_len=1024)
    assert made.tokens == [saved.greedy(p, 3) for p in prompts]
    assert made.log.of("segmented_attention")
    assert all("cos_cache" in c.shapes for c in made.log.of("qkv_proj"))


@pytest.mark.parametrize("sequence", [False, True])
def test_on_two_ranks_each_with_its_heads(sequence: bool, tmp_path: Path) -> None:
    """Also where each rank has its own tokens in prefill: sines and cosines are of all tokens then."""
    saved = write(tmp_path, small("qwen3", **FITS))
    prompts = saved.prompts(6, 41)
    own = {"neuron_autoport": {"sequence_parallel": sequence}}
    made = generate(
        MODEL, tmp_path, prompts, TOKENS, tp=2, buckets=(128,), compile=False, additional=own
    )
    assert made.tokens == [saved.greedy(p, TOKENS) for p in prompts]
    calls = made.log.of("qkv_proj", "prefill")
    assert calls and all(c.shapes["cos_cache"] == (1, 128, 32) for c in calls)
    assert all(c.shapes["qkv_weights"] == (256, 128) for c in calls)
    assert bool(made.log.collectives["reduce_scatter"]) == sequence


def build(config: Any) -> Any:
    with torch.device("meta"):
        return NeuronTransformersForCausalLM.from_configs(config)


def runs(model_type: str, **changes: Any) -> dict[tuple[str, str], str]:
    plan = build(small(model_type, **changes)).host_plan
    return {(c.phase, c.call): c.runs for c in plan.choices}


def test_the_plan_says_where_they_are() -> None:
    said = runs("qwen3", **FITS)
    assert said["prefill", "QK-norm and RoPE"] == "in NF.qkv_proj"
    assert said["decode", "QK-norm and RoPE"] == "in NF.qkv_proj"
    assert not any(call == "qk_norm_rope" for _, call in said)


@pytest.mark.parametrize(
    ("model_type", "changes", "what", "reason"),
    [
        ("qwen3", {**FITS, "head_dim": 64}, "QK-norm and RoPE", "512 columns per rank"),
        ("llama", {"hidden_size": 192}, "RoPE", "hidden size 192"),
        ("glm4", {}, "QK-norm and RoPE", "no half-split rotation"),  # pairs, half a head
        ("stablelm", {}, "QK-norm and RoPE", "no half-split rotation"),  # a quarter of a head
        ("olmo2", {}, "QK-norm and RoPE", "no RMS norm over a head"),  # over all heads
    ],
)
def test_the_plan_says_why_they_are_apart(
    model_type: str, changes: dict[str, Any], what: str, reason: str
) -> None:
    said = runs(model_type, **changes)
    for phase in ("prefill", "decode"):
        assert said[phase, what].startswith("apart: ") and reason in said[phase, what]


def test_without_rotation_and_norm_nothing_is_said() -> None:
    assert not any("RoPE" in call or "QK" in call for _, call in runs("gpt2"))


def test_limits_by_hand() -> None:
    """The table of `qkv_proj` in the contract: H <= 24576 and a multiple of 128, F <= 4096, F <= H."""
    assert heads_limit(4096, 4096) is None and heads_limit(24576, 4096) is None
    for width, columns in ((4100, 512), (24704, 512), (8192, 4097), (512, 640)):
        assert heads_limit(width, columns) is not None


@pytest.mark.parametrize(
    ("model_type", "what"),
    [("llama", "residual sum and norm"), ("gpt_neox", "norm"), ("olmo2", None)],
)
def test_the_norm_before_an_mlp_is_apart_for_its_rounding(
    model_type: str, what: str | None
) -> None:
    said = runs(model_type)
    found = {
        call: r for (phase, call), r in said.items() if r.startswith("apart") and "norm" in call
    }
    found.pop("QK-norm and RoPE", None)
    assert set(found) == ({what} if what else set())
    assert all("rounds after float32" in reason for reason in found.values())
