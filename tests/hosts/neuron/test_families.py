"""Through the plugin's double, step by step: the tokens Hugging Face generates, for many families."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.hosts.neuron.checkpoints import MODEL, small, write
from tests.neuron.runner import generate

# Windows are four tokens wide; the prompts and what follows are longer, and cross blocks of 32.
LENGTHS, TOKENS = (5, 40), 4
FAMILIES = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "granite", "phi3", "stablelm", "glm4",
    "olmo2", "mixtral", "gpt_oss", "gpt2", "gpt_neox", "smollm3", "cohere2",
)  # fmt: skip


@pytest.mark.parametrize("model_type", FAMILIES)
def test_greedy_tokens_equal_hugging_face(model_type: str, tmp_path: Path) -> None:
    more = (
        {"n_positions": 256} if model_type == "gpt2" else {}
    )  # warm-up goes through all positions
    saved = write(tmp_path, small(model_type, **more))
    prompts = saved.prompts(*LENGTHS)
    made = generate(
        MODEL, tmp_path, prompts, TOKENS, compile=False, on_device_sampling=False, allow_traps=False
    )
    wanted = [saved.logits(p, TOKENS) for p in prompts]
    assert made.tokens == [[int(row.argmax()) for row in rows] for rows in wanted]
    for got, want in zip(made.logits, wanted, strict=True):
        assert got is not None
        assert (got - want).abs().max() <= 1e-4 * want.abs().max()


@pytest.mark.parametrize("batch", [1, 5])
def test_batches_agree(batch: int, tmp_path: Path) -> None:
    saved = write(tmp_path, small("gemma3_text"))
    prompts = saved.prompts(*(7, 40, 12, 33, 5)[:batch])
    made = generate(MODEL, tmp_path, prompts, 4, compile=False, batch=batch)
    assert made.tokens == [saved.greedy(p, 4) for p in prompts]


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


def test_all_calls_in_bfloat16(tmp_path: Path) -> None:
    """A bfloat16 run is as far from float32 as Hugging Face's own bfloat16 run is."""
    saved = write(tmp_path, small("qwen3"))
    prompt = saved.prompts(21)[0]
    exact = saved.logits(prompt, 1)
    with torch.no_grad():
        own = saved.model.bfloat16()(input_ids=torch.tensor([prompt]), use_cache=False).logits[
            :, -1
        ]
    made = generate(
        MODEL, tmp_path, [prompt], 1, compile=False, on_device_sampling=False, dtype=torch.bfloat16
    )
    assert made.logits[0] is not None
    ours = (made.logits[0].float() - exact).square().mean().sqrt()
    theirs = (own.float() - exact).square().mean().sqrt()
    assert 0 < ours <= 3 * theirs
