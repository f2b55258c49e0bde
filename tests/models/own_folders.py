"""Folders with a modeling file of their own: one that can be served, and one without transformers' base class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from transformers import AutoConfig

from tests.hosts.vllm.own_code import CONFIG, CONFIGURATION, MODELING

PLAIN = """
from pathlib import Path

import torch.nn.functional as F
from torch import nn
from transformers import PretrainedConfig

Path({ran!r}).touch()


class GPTConfig(PretrainedConfig):
    model_type = "plain_gpt"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class GPT(nn.Module):
    def __init__(self, config{more}):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(100, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config.hidden_size) for _ in range(2))
        self.head = nn.Linear(config.hidden_size, 100)

    def forward(self, idx, targets=None):
        x = self.words(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make(config):
    return GPT(config)
"""


def own_folder(folder: Path, begins: Callable[[str], bool] | None = None) -> Path:
    """A model that can be served. begins: what the name transformers gives its code must begin with."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    modeling = MODELING.replace(
        "def __init__(self, config):", "def __init__(self, config: OwnConfig):"
    )
    (folder / "modeling_own.py").write_text(modeling, encoding="utf-8")
    for attempt in range(64):
        text = f"{CONFIGURATION}# {attempt}\n"
        (folder / "configuration_own.py").write_text(text, encoding="utf-8")
        if begins is None or begins(digest_of(folder)[0]):
            return folder
    raise AssertionError("no digest begins so")


def digest_of(folder: Path) -> str:
    """The digest in the dotted name of the folder's code."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    return str(type(config).__module__.split(".")[-2])


def plain_folder(folder: Path, ran: Path, more: str = "", named: str = "GPT") -> Path:
    """A plain nn.Module as causal language model. ran: is there once the code has run."""
    folder.mkdir(parents=True)
    auto_map = {
        "AutoConfig": "modeling_gpt.GPTConfig",
        "AutoModelForCausalLM": f"modeling_gpt.{named}",
    }
    config = {"model_type": "plain_gpt", "hidden_size": 64, "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = PLAIN.format(ran=str(ran), more=more)
    (folder / "modeling_gpt.py").write_text(text, encoding="utf-8")
    return folder
