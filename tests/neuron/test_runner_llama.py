"""The hand-written Llama through the runner: greedy tokens are Hugging Face's, in fp32.

This tests the double and the runner themselves: buckets, padding, block tables, windows, chunks,
requests that join and leave, sampling on and off the device.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.neuron.conftest import Checkpoints
from tests.neuron.engine.options import Options
from tests.neuron.faults import Faults
from tests.neuron.reference.llama import ReferenceLlama
from tests.neuron.runner import Round, generate, generate_rounds

Prompts = list[list[int]]


def test_compiled_with_every_bucket_warmed_up(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Five requests through three places, one graph per bucket, no recompilation."""
    llama = checkpoint("llama")
    result = generate(ReferenceLlama, llama.folder, prompts, 6, batch=3)
    assert result.tokens == [llama.greedy(prompt, 6) for prompt in prompts]
    steps = [graph.step for graph in result.log.graphs]
    assert steps == [
        "warmup prefill 128",
        "warmup prefill 256",
        "warmup decode 1x8",
        "warmup decode 2x8",
        "warmup decode 3x8",
    ]
    decode = result.log.graphs[-1]
    assert decode.functions == {
        "embedding": 1,
        "gen_attention_decode_mask": 2,
        "attention_decode": 2,
        "mlp": 2,
        "sample": 1,
    }
    assert decode.collectives == {"all_reduce_": 5}


@pytest.mark.parametrize("name", ["tied", "biased", "one kv head"])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_models_and_batches(
    checkpoint: Checkpoints, prompts: Prompts, name: str, batch: int
) -> None:
    """Batches 1, 2 and 5 (3 is above), and everything a Llama configuration can ask for."""
    llama = checkpoint(name)
    result = generate(ReferenceLlama, llama.folder, prompts, 4, batch=batch, compile=False)
    assert result.tokens == [llama.greedy(prompt, 4) for prompt in prompts]


def test_a_sliding_window(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Window 96, prompts and contexts beyond it, blocks that leave the window are freed."""
    mistral = checkpoint("window")
    long = [*prompts, prompts[2] + prompts[3]]
    result = generate(
        ReferenceLlama, mistral.folder, long, 40, batch=3, buckets=(256,), compile=False
    )
    assert result.tokens == [mistral.greedy(prompt, 40) for prompt in long]
    tables = {call.shapes["active_blocks_table"][1] for call in result.log.of("attention_decode")}
    assert tables == {4}, "96 // 32 + 1 blocks, where the full table has 8"


def test_groups_that_share_buffers(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Window, full and window layers: three groups with block tables of their own, one buffer."""
    hybrid = checkpoint("hybrid")
    garbage = Faults(poison="garbage")
    result = generate(
        ReferenceLlama, hybrid.folder, prompts, 12, batch=2, faults=garbage, compile=False
    )
    assert result.tokens == [hybrid.greedy(prompt, 12) for prompt in prompts]
    tables = [call.shapes["active_blocks_table"][1] for call in result.log.of("attention_decode")]
    assert tables[:3] == [4, 8, 4]


@pytest.mark.parametrize("name", ["llama", "window"])
def test_chunked_prefill(checkpoint: Checkpoints, prompts: Prompts, name: str) -> None:
    """Segments of 512: one chunk, two chunks, decode steps of others in between."""
    model = checkpoint(name)
    long = [prompts[0], (prompts[2] * 5)[:600], (prompts[3] * 9)[:512], prompts[1]]
    rounds = [Round(long, [9, 3, 3, 5], arrivals=[0, 1, 2, 3])]
    options = Options(batch=2, chunk=512, max_model_len=1024, compile=False)
    [result] = generate_rounds(ReferenceLlama, model.folder, rounds, options)
    wanted = [model.greedy(p, n) for p, n in zip(long, [9, 3, 3, 5], strict=True)]
    assert result.tokens == wanted
    assert result.log.functions("prefill")["segmented_attention"] == 2 * 5
    assert result.log.functions("prefill")["flash_attention"] == 0


def test_requests_join_and_leave(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Requests arrive while others decode and leave before them: places are filled anew."""
    llama = checkpoint("llama")
    counts = [12, 2, 5, 1, 7]
    rounds = [Round(prompts, counts, arrivals=[0, 0, 3, 4, 9])]
    options = Options(batch=3, compile=False)
    [result] = generate_rounds(ReferenceLlama, llama.folder, rounds, options)
    assert result.tokens == [llama.greedy(p, n) for p, n in zip(prompts, counts, strict=True)]


def test_two_rounds_equal_two_fresh_runs(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """What a round leaves in the caches does not reach the next one."""
    llama = checkpoint("llama")
    rounds = [Round(prompts[:3], 5), Round(prompts[3:], 5), Round(prompts[:3], 5)]
    options = Options(batch=2, compile=False)
    first, second, third = generate_rounds(ReferenceLlama, llama.folder, rounds, options)
    fresh = generate_rounds(ReferenceLlama, llama.folder, rounds[1:2], options)
    assert first.tokens == third.tokens
    assert second.tokens == fresh[0].tokens


def test_logits_in_place_of_tokens(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Sampling off: forward gives [R, V], the runner takes the largest; no parameters at run time."""
    llama = checkpoint("llama")
    result = generate(
        ReferenceLlama, llama.folder, prompts[:2], 4, buckets=(128,), on_device_sampling=False
    )
    for prompt, tokens, logits in zip(prompts, result.tokens, result.logits, strict=False):
        assert tokens == llama.greedy(prompt, 4)
        assert logits is not None
        want = llama.logits(prompt + tokens[:-1])[len(prompt) - 1 :]
        torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)


def test_gathered_logits_beside_tokens(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """max_logprobs: the full logits come with the tokens, and only then."""
    llama = checkpoint("llama")
    common = {"buckets": (128,), "compile": False}
    with_logits = generate(ReferenceLlama, llama.folder, prompts[:1], 3, max_logprobs=5, **common)
    without = generate(ReferenceLlama, llama.folder, prompts[:1], 3, **common)
    assert with_logits.tokens == without.tokens == [llama.greedy(prompts[0], 3)]
    assert with_logits.logits[0] is not None and without.logits[0] is None


def test_sampling_parameters(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Parameters belong to their request: heat with top_k 1 is greedy, with more it is not."""
    llama = checkpoint("llama")
    sampling = [(-1.0, 1.0, 0.0), (1.0, 1.0, 2.0), (-1.0, 1.0, 50.0)]
    rounds = [Round([prompts[0]] * 3, 6, sampling=sampling)]
    options = Options(batch=3, buckets=(128,), compile=False)
    [result] = generate_rounds(ReferenceLlama, llama.folder, rounds, options)
    want = llama.greedy(prompts[0], 6)
    assert result.tokens[:2] == [want, want] and result.tokens[2] != want


def test_bfloat16_is_no_further_from_float32_than_hugging_face(
    checkpoint: Checkpoints, prompts: Prompts
) -> None:
    """Three-way: the RMS error of the first logits, against Hugging Face's own in bfloat16."""
    llama = checkpoint("llama")
    result = generate(
        ReferenceLlama,
        llama.folder,
        prompts[:3],
        1,
        on_device_sampling=False,
        dtype=torch.bfloat16,
        compile=False,
    )
    ours, theirs = [], []
    half = AutoModelForCausalLM.from_pretrained(
        llama.folder, dtype=torch.bfloat16, attn_implementation="eager"
    )
    for prompt, logits in zip(prompts, result.logits, strict=False):
        baseline = llama.logits(prompt)[-1]
        assert logits is not None
        with torch.no_grad():
            other = half(torch.tensor([prompt])).logits[0, -1].float()
        ours.append((logits[0] - baseline).pow(2).mean())
        theirs.append((other - baseline).pow(2).mean())
    ratio = (torch.stack(ours).mean() / torch.stack(theirs).mean()).sqrt()
    assert 0.3 < ratio < 1.3, f"error ratio {ratio}"


def test_context_buckets(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Decode tables are cut to the smallest context bucket; the context grows from one to two."""
    llama = checkpoint("llama")
    prompt = prompts[2][:124]
    result = generate(
        ReferenceLlama, llama.folder, [prompt], 8, batch=1, context_buckets=(128,), compile=False
    )
    assert result.tokens == [llama.greedy(prompt, 8)]
    widths = [c.shapes["active_blocks_table"][1] for c in result.log.of("attention_decode")]
    assert widths == [4] * 2 * 4 + [8] * 2 * 3


def test_logit_masks(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Structured outputs: a request draws only what its mask allows, the others all."""
    llama = checkpoint("llama")
    even = torch.arange(320) % 2 == 0
    rounds = [Round(prompts[:2], 4, allowed=[even, None])]
    options = Options(buckets=(128,), max_model_len=128, mask="full", compile=False)
    [result] = generate_rounds(ReferenceLlama, llama.folder, rounds, options)
    ids = list(prompts[0])
    for token in result.tokens[0]:
        allowed = llama.logits(ids)[-1].masked_fill(~even, -float("inf"))
        assert token == int(allowed.argmax())
        ids.append(token)
    assert result.tokens[1] == llama.greedy(prompts[1], 4)
