"""The file of a user's own modules that the tests of `autoport inspect FILE.py:CLASS` look at."""

from __future__ import annotations

from pathlib import Path

MINE = '''\
"""Modules of a user's own."""

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class MLP(nn.Module):
    def __init__(self, width=64, inner=128):
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner), nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.mlp = Norm(width), MLP(width)

    def forward(self, x, mask=None):
        y = self.mlp(self.norm(x))
        return y if mask is None else y * mask


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 64)

    def forward(self, x):
        inner = F.silu(self.gate(x)) * self.up(x)
        return self.down(inner), inner


class Loud(nn.Module):
    def forward(self, x):
        raise KeyError("no such key")


class Both(nn.Module):
    """A norm and an MLP in one forward: two rules in one class."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.gate, self.up, self.down = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 64)

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = self.weight * wide.to(x.dtype)
        inner = F.silu(self.gate(normed)) * self.up(normed)
        return self.down(inner)


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.mlp = nn.Embedding(10, 64), MLP()

    def forward(self, ids):
        return self.mlp(self.table(ids))


def make(width=64):
    return MLP(width)


NOT_A_CLASS = 3
'''
ARGUMENTS = ("--input", "2,8,64", "--trust-remote-code")


def write_mine(folder: Path) -> str:
    """The file in a folder; its path."""
    path = folder / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    return str(path)


def line_of(part: str) -> int:
    """Line, from 1, of the one place where `part` stands in the file."""
    assert MINE.count(part) == 1
    return MINE[: MINE.index(part)].count("\n") + 1
