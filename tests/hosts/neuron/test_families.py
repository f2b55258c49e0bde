"""Through the plugin's double, step by step: the tokens Hugging Face generates, for many families."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_autoport.accuracy.three_way import assert_close_three_way
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.stepper import hosted_logits
from tests.hosts.neuron.checkpoints import MODEL, Checkpoint, small, write
from tests.neuron.engine.options import Options
from tests.neuron.runner import Round, generate, generate_rounds

# Windows are four tokens wide; most prompts and what follows are longer, and cross blocks of 32.
TOKENS = 4
FAMILIES = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "granite", "phi3", "stablelm", "glm4",
    "olmo2", "mixtral", "qwen3_moe", "gpt_oss", "gpt2", "gpt_neox", "smollm3", "cohere2", "gemma", "olmo",
    "phi", "starcoder2", "olmoe", "exaone4", "qwen2_moe", "apertus",
)  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 256},  # warm-up goes through all positions
}
# Requests that run together, one round after the other on one loaded model: blocks are used again, and what an
# earlier request left in them must not be seen.
ROUNDS = ((5,), (40,), (7, 40), (12, 33, 5), (7, 40, 12, 33, 5))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_greedy_tokens_equal_hugging_face(model_type: str, tmp_path: Path) -> None:
    """Alone, a second request after the first, and in batches of 2, 3 and 5."""
    saved = write(tmp_path, small(model_type, **CHANGES.get(model_type, {})))
    rounds = [Round(saved.prompts(*lengths), TOKENS) for lengths in ROUNDS]
    options = Options(batch=5, buckets=(128,), compile=False, on_device_sampling=False)
    for given, made in zip(rounds, generate_rounds(MODEL, tmp_path, rounds, options), strict=True):
        wanted = [saved.logits(list(p), TOKENS) for p in given.prompts]
        assert made.tokens == [[int(row.argmax()) for row in rows] for rows in wanted]
        for got, want in zip(made.logits, wanted, strict=True):
            assert got is not None
            assert (got - want).abs().max() <= 1e-4 * want.abs().max()


def test_chunked_prefill_goes_through_the_cache(tmp_path: Path) -> None:
    saved = write(tmp_path, small("llama", max_position_embeddings=2048))
    prompts = saved.prompts(600, 20)
    made = generate(MODEL, tmp_path, prompts, 3, compile=False, chunk=512, max_model_len=1024)
    assert made.tokens == [saved.greedy(p, 3) for p in prompts]
    chunks = made.log.of("segmented_attention")
    assert (
        len(chunks) == 3 * saved.config.num_hidden_layers
    )  # two chunks of one prompt, one of the other
    assert not made.log.of("flash_attention")


def test_a_window_that_fits_no_block_stays_in_torch_in_chunks(tmp_path: Path) -> None:
    """The kernel refuses a window that is no multiple of the block size; torch takes any."""
    saved = write(tmp_path, small("gemma3_text", max_position_embeddings=2048))
    prompts = saved.prompts(520)
    made = generate(MODEL, tmp_path, prompts, 3, compile=False, chunk=512, max_model_len=1024)
    assert made.tokens == [saved.greedy(p, 3) for p in prompts]
    full = sum(kind == "full_attention" for kind in saved.config.layer_types)
    assert len(made.log.of("segmented_attention")) == 2 * full


def test_soft_capped_attention_calls_no_function_that_drops_it(tmp_path: Path) -> None:
    saved = write(tmp_path, small("gemma2"))
    made = generate(MODEL, tmp_path, saved.prompts(9), 2, compile=False)
    assert made.tokens == [saved.greedy(p, 2) for p in saved.prompts(9)]
    assert not made.log.of("flash_attention") and not made.log.of("attention_decode")
    assert made.log.of("qkv_proj")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_bfloat16_is_no_further_from_float32(model_type: str, tmp_path: Path) -> None:
    """Prefill and three decode steps of two requests, by the plugin's own three-way rule."""
    check_bfloat16(write(tmp_path, small(model_type, **CHANGES.get(model_type, {}))), model_type)


def check_bfloat16(saved: Checkpoint, name: str) -> None:
    """Hosted in bfloat16, a checkpoint's model is no further from float32 than Hugging Face's in bfloat16."""
    rows = saved.prompts(14, 9)
    config = copy.deepcopy(saved.config)
    config.dtype = torch.bfloat16
    model = NeuronTransformersForCausalLM.from_configs(config)
    model.load_weights(str(saved.folder), "cpu")
    ours = hosted_logits(model, [r[:-3] for r in rows], [r[-3:] for r in rows])
    exact = _last_logits(saved.model, rows)
    theirs = _last_logits(saved.model.bfloat16(), rows)
    assert_close_three_way(exact, theirs, ours, name=name)


def _last_logits(model: Any, rows: list[list[int]]) -> torch.Tensor:
    """Hugging Face's logits [requests, 4, V] after the prompt and each of three more tokens."""
    with torch.no_grad():
        found = [model(input_ids=torch.tensor([r]), use_cache=False).logits[0, -4:] for r in rows]
    return torch.stack(found)
