"""Small checkpoints on disk, and what Hugging Face generates from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import load_model_config
from neuron_autoport.models.tiny import tiny_config

MODEL = "neuron_autoport.hosts.neuron.model:NeuronTransformersForCausalLM"


@dataclass
class Checkpoint:
    """A folder, its configuration and the model that was saved there, in float32 with eager attention."""

    folder: Path
    config: Any
    model: Any

    def prompts(self, *lengths: int) -> list[list[int]]:
        """Random prompts of these lengths; the same each time."""
        draw = torch.Generator().manual_seed(1)
        vocabulary = int(self.config.get_text_config().vocab_size)
        return [torch.randint(3, vocabulary - 1, (n,), generator=draw).tolist() for n in lengths]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The next tokens by Hugging Face, each from the whole sequence without a cache."""
        return [int(row.argmax()) for row in self.logits(prompt, count)]

    def logits(self, prompt: list[int], count: int) -> torch.Tensor:
        """Logits [count, V] of the greedy continuation."""
        ids, rows = list(prompt), []
        for _ in range(count):
            with torch.no_grad():
                row = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            rows.append(row)
            ids.append(int(row.argmax()))
        return torch.stack(rows)


def small(model_type: str, **changes: Any) -> Any:
    """A tiny float32 configuration of a model type, with fields changed."""
    config = copy.deepcopy(tiny_config(load_model_config(model_type)))
    for name, value in changes.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    config.dtype = torch.float32
    return config


def write(folder: Path, config: Any, seed: int = 0) -> Checkpoint:
    """A checkpoint with adversarial weights of this configuration, saved by Hugging Face."""
    model = real_model(config, dtype=torch.float32, seed=seed, attn_implementation="eager")
    model.save_pretrained(folder)
    return Checkpoint(folder, config, model)
