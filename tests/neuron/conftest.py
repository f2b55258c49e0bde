"""Shared by the Neuron tests: tiny checkpoints, what Hugging Face generates from them, and data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    PreTrainedConfig,
)

from tests.neuron.double import State, installed

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "biased": LlamaConfig(**SIZES, attention_bias=True),
    "one kv head": LlamaConfig(**{**SIZES, "num_key_value_heads": 1}),
    "square": LlamaConfig(**SIZES, head_dim=32),
    "hybrid": MinistralConfig(
        **{**SIZES, "num_hidden_layers": 3},
        head_dim=32,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "window": MistralConfig(**SIZES, sliding_window=96),
}


@dataclass
class Checkpoint:
    """A tiny model on disk and in Hugging Face's hands."""

    folder: Path
    model: Any

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Hugging Face's greedy ids, eager attention, float32."""
        ids = torch.tensor([list(prompt)])
        with torch.no_grad():
            out = self.model.generate(
                ids, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        found: list[int] = out[0, len(prompt) :].tolist()
        return found

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Hugging Face's logits [len, V] for a sequence."""
        with torch.no_grad():
            found: Tensor = self.model(torch.tensor([list(ids)])).logits[0]
        return found


Checkpoints = Callable[[str], Checkpoint]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """checkpoint(name): one of CONFIGS with random weights; made once."""
    made: dict[str, Checkpoint] = {}

    def make(name: str) -> Checkpoint:
        if name not in made:
            torch.manual_seed(11)
            model: Any = AutoModelForCausalLM.from_config(
                CONFIGS[name], attn_implementation="eager", dtype=torch.float32
            )
            for parameter in model.parameters():
                low, high = (0.5, 1.5) if parameter.dim() == 1 else (-0.25, 0.25)
                torch.nn.init.uniform_(parameter, low, high)
            folder = tmp_path_factory.mktemp("neuron") / name.replace(" ", "-")
            model.eval().save_pretrained(folder)
            made[name] = Checkpoint(folder, model)
        return made[name]

    return make


@pytest.fixture
def prompts() -> list[list[int]]:
    """Five prompts: one token, a part of a block, whole blocks, above the first bucket."""
    generator = torch.Generator().manual_seed(3)
    lengths = (5, 33, 130, 64, 1)
    return [torch.randint(1, 320, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture
def double() -> Iterator[State]:
    """The double in place of the plugin for one test."""
    with installed() as state:
        yield state


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    """draw(*shape): seeded normal data in float32."""
    generator = torch.Generator().manual_seed(5)
    return lambda *shape: torch.randn(*shape, generator=generator)
