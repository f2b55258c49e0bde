"""Deliberate faults: in what a model is given they change nothing, in a model they are caught."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.neuron import faults
from tests.neuron.conftest import Checkpoints
from tests.neuron.double import ContractError
from tests.neuron.engine.options import Options
from tests.neuron.reference.attention import Attention
from tests.neuron.reference.llama import ReferenceLlama
from tests.neuron.runner import Round, generate, generate_rounds

Prompts = list[list[int]]
QUICK: dict[str, Any] = {"buckets": (128, 256), "compile": False}


@pytest.mark.parametrize("semantics", ["torch", "kernel"])
@pytest.mark.parametrize("fault", faults.ALL)
def test_faults_change_nothing(
    checkpoint: Checkpoints, prompts: Prompts, fault: str, semantics: Any
) -> None:
    """Five requests through three places: padded rows, reused blocks, a second request in each."""
    llama = checkpoint("one kv head")
    options = Options(batch=3, faults=faults.ALL[fault], semantics=semantics, compile=False)
    rounds = [Round(prompts, [4, 3, 6, 2, 5])]
    [result] = generate_rounds(ReferenceLlama, llama.folder, rounds, options)
    wanted = [llama.greedy(p, n) for p, n in zip(prompts, [4, 3, 6, 2, 5], strict=True)]
    assert result.tokens == wanted


@pytest.mark.parametrize("fault", faults.ALL)
def test_faults_change_nothing_in_windows_and_chunks(
    checkpoint: Checkpoints, prompts: Prompts, fault: str
) -> None:
    """Blocks that left the window are free, poisoned and reused while the request goes on."""
    mistral = checkpoint("window")
    long = [prompts[0], (prompts[2] * 5)[:600]]
    options = Options(
        batch=2, chunk=512, max_model_len=1024, faults=faults.ALL[fault], compile=False
    )
    rounds = [Round(long, [4, 3])]
    [result] = generate_rounds(ReferenceLlama, mistral.folder, rounds, options)
    assert result.tokens == [mistral.greedy(long[0], 4), mistral.greedy(long[1], 3)]


def _with_attention(attention: type[Attention]) -> type[ReferenceLlama]:
    """The reference model with another attention class."""

    class Faulty(ReferenceLlama):
        def __init__(self, config: Any, neuron_config: Any) -> None:
            super().__init__(config, neuron_config)
            for layer in self.layers:
                each: Any = layer
                each.self_attn.__class__ = attention

    return Faulty


class RawSlots(Attention):
    """Fault: slots are used as they come."""

    def slots(self, entry: dict[str, Any]) -> Tensor:
        slots: Tensor = entry["slot_mapping"]
        return slots


class AbsoluteWindow(Attention):
    """Fault: the window is counted in absolute positions over a trimmed table."""

    def mask(self, positions: Tensor, entry: dict[str, Any]) -> Tensor:
        whole = dict(entry, swa_kv_pos_offset=torch.zeros_like(entry["swa_kv_pos_offset"]))
        return super().mask(positions, whole)


class OtherBatchMask(Attention):
    """Fault: a mask made for another batch size."""

    def mask(self, positions: Tensor, entry: dict[str, Any]) -> Tensor:
        return super().mask(torch.cat([positions, positions]), entry)


class AttendFirst(Attention):
    """Fault: segmented attention before the chunk is in the cache."""

    def write(self, k: Tensor, v: Tensor, entry: dict[str, Any]) -> None:
        if not entry["kv_segment_size"]:
            super().write(k, v, entry)


class StoredAsLinear(ReferenceLlama):
    """Fault: the square O-projection keeps the layout of torch.nn.Linear, [out, in]."""

    def load_weights(self, path: str, device: torch.device, cache_dir: str | None = None) -> None:
        super().load_weights(path, device, cache_dir)
        for layer in self.layers:
            attention: Any = layer.self_attn
            attention.o.data = attention.o.data.T.contiguous()


def test_raw_slots_are_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """With pad slots of -1 the last cache slot is written: a documented trap."""
    model = _with_attention(RawSlots)
    llama = checkpoint("llama")
    run = {"faults": faults.ALL["pad slots -1"], **QUICK}
    with pytest.raises(ContractError, match="outside the cache is written to the last slot"):
        generate(model, llama.folder, prompts[:3], 3, batch=3, seq_buckets=(4,), **run)
    clean = generate(model, llama.folder, prompts[:3], 3, batch=3, **QUICK)
    assert clean.tokens == [llama.greedy(prompt, 3) for prompt in prompts[:3]]


def test_a_window_in_the_wrong_frame_is_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """Right as long as the table starts at 0, wrong beyond."""
    mistral = checkpoint("window")
    model = _with_attention(AbsoluteWindow)
    short, long = prompts[1], prompts[2]
    result = generate(model, mistral.folder, [short, long], 8, **QUICK)
    assert result.tokens[0] == mistral.greedy(short, 8)
    assert result.tokens[1] != mistral.greedy(long, 8)


def test_a_mask_of_another_batch_is_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    model = _with_attention(OtherBatchMask)
    with pytest.raises(ContractError, match=r"attention_mask must be \[256, 1, 4, 1\]"):
        generate(model, checkpoint("llama").folder, prompts[:1], 2, **QUICK)


def test_attending_before_writing_is_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    llama = checkpoint("llama")
    options = {"chunk": 512, "max_model_len": 1024, "compile": False}
    result = generate(_with_attention(AttendFirst), llama.folder, prompts[:1], 2, **options)
    assert result.tokens != [llama.greedy(prompts[0], 2)]


def test_the_layout_of_a_square_weight_is_caught(checkpoint: Checkpoints, prompts: Prompts) -> None:
    """No shape shows it; the tokens do."""
    llama = checkpoint("llama")
    result = generate(StoredAsLinear, llama.folder, prompts[:1], 4, **QUICK)
    assert result.tokens != [llama.greedy(prompts[0], 4)]
