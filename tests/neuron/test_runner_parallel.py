"""The hand-written Llama on two and four gloo ranks: the tokens of one rank, and of Hugging Face."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.neuron.conftest import Checkpoints
from tests.neuron.double import ContractError
from tests.neuron.reference.llama import ReferenceLlama
from tests.neuron.runner import generate

Prompts = list[list[int]]
QUICK: dict[str, Any] = {"buckets": (128,), "compile": False}


class Scattered(ReferenceLlama):
    """Sequence parallelism in prefill: the residual lives on the rank's tokens."""

    sequence_parallel = True


class PythonRank(ReferenceLlama):
    """Fault: the rank goes into the graph as a number."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["rank"] = kwargs["rank"] * 0 + self.group.rank_in_group
        return super().forward(*args, **kwargs)


class WholeBias(ReferenceLlama):
    """Fault: the O-projection's bias is added on every rank, then summed."""

    def load_weights(self, path: str, device: torch.device, cache_dir: str | None = None) -> None:
        super().load_weights(path, device, cache_dir)
        for layer in self.layers:
            attention: Any = layer.self_attn
            attention.o_bias.data *= self.group.world_size


class ReducedTwice(ReferenceLlama):
    """Fault: the sampled ids, equal on all ranks, are summed over them."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tokens, logits = super().forward(*args, **kwargs)
        self.group.all_reduce(tokens)
        return tokens, logits


def test_two_ranks_compiled(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Both ranks compile the same graphs; two KV heads on two ranks use the decode kernel."""
    llama = checkpoint("biased")
    short = [prompts[0], prompts[1]]
    result = generate(
        ReferenceLlama, llama.folder, short, 4, tp=2, batch=2, buckets=(128,), seq_buckets=(2,)
    )
    assert result.tokens == [llama.greedy(prompt, 4) for prompt in short]
    assert result.log.verdicts()["decode", "attention_decode"] == {"kernel"}
    assert result.log.functions("prefill")["sample"] == 2


def test_a_rank_reads_its_shard(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Two ranks: half of each sharded matrix; embedding and head are one tensor, read twice."""
    tied = checkpoint("tied")
    read = generate(ReferenceLlama, tied.folder, prompts[:1], 1, tp=2, **QUICK).log.read
    layer = "model.layers.0"
    whole = {
        f"{layer}.self_attn.q_proj.weight": 128 * 128,
        f"{layer}.self_attn.k_proj.weight": 64 * 128,
        f"{layer}.mlp.down_proj.weight": 128 * 256,
    }
    for name, size in whole.items():
        assert read[name] == size * 4 // 2
    assert read[f"{layer}.input_layernorm.weight"] == 128 * 4
    assert read["model.embed_tokens.weight"] == 2 * (320 * 128 * 4 // 2)


def test_more_ranks_than_kv_heads(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Four ranks, two KV heads: each KV head lives on two ranks."""
    llama = checkpoint("llama")
    short = prompts[:2]
    result = generate(ReferenceLlama, llama.folder, short, 3, tp=4, **QUICK)
    assert result.tokens == [llama.greedy(prompt, 3) for prompt in short]
    assert {call.shapes["K_cache"][1] for call in result.log.of("attention_decode")} == {1}


def test_sequence_parallel_prefill(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Gather and scatter in prefill, all-reduce in decode; sampling off the device."""
    llama = checkpoint("biased")
    result = generate(
        Scattered, llama.folder, prompts[:2], 3, tp=2, on_device_sampling=False, **QUICK
    )
    assert result.tokens == [llama.greedy(prompt, 3) for prompt in prompts[:2]]
    kinds = result.log.collectives
    assert kinds["reduce_scatter"] == 2 * 5, "two prefills: embedding and twice two layers"
    assert kinds["all_reduce"] == 3 * 5, "three decode steps"


def test_masks_of_a_rank(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """A rank's part of the mask, [R, V / tp], changes nothing while all is allowed."""
    llama = checkpoint("llama")
    result = generate(ReferenceLlama, llama.folder, prompts[:1], 2, tp=2, mask="local", **QUICK)
    assert result.tokens == [llama.greedy(prompts[0], 2)]


def test_a_rank_in_the_graph_is_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    with pytest.raises(ContractError, match="the ranks compiled different graphs"):
        generate(
            PythonRank, checkpoint("llama").folder, prompts[:1], 1, tp=2, batch=1, buckets=(128,)
        )


def test_a_bias_added_per_rank_is_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """The same model is right on one rank: only the sum over ranks shows the fault."""
    biased = checkpoint("biased")
    want = [biased.greedy(prompt, 8) for prompt in prompts[:2]]
    assert generate(WholeBias, biased.folder, prompts[:2], 8, **QUICK).tokens == want
    assert generate(WholeBias, biased.folder, prompts[:2], 8, tp=2, **QUICK).tokens != want


def test_a_second_reduction_is_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """On two ranks the ids come out twice as large."""
    llama = checkpoint("llama")
    want = [llama.greedy(prompts[0], 4)]
    assert generate(ReducedTwice, llama.folder, prompts[:1], 4, **QUICK).tokens == want
    assert generate(ReducedTwice, llama.folder, prompts[:1], 4, tp=2, **QUICK).tokens != want


def test_a_rank_that_fails_is_reported(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Sizes that cannot be divided end the run on every rank with the model's own words."""
    with pytest.raises(ContractError, match="4 attention heads cannot be divided by 3 ranks"):
        generate(ReferenceLlama, checkpoint("llama").folder, prompts[:1], 1, tp=3, **QUICK)
