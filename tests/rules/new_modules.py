"""The file of a user's own modules that the tests of `autoport rules new` write rules from."""

from __future__ import annotations

MINE = '''\
"""Modules of a user's own."""

import os.path as path
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 16
INNER = 2 * WIDTH


def swish(x, beta: float = 1.0):
    return x * torch.sigmoid(beta * x)


class Base(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.up = nn.Linear(width, INNER)


class Squared(Base):
    """Squared ReLU, scaled."""

    def __init__(self, width=WIDTH):
        super().__init__(width)
        self.down = nn.Linear(INNER, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        # what stands between is no MLP that NF knows
        hidden = torch.relu(self.up(x)) ** 2
        return self.scale * self.down(hidden + 1.5)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.down = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(swish(gate) * up)


class Shared(nn.Module):
    def forward(self, x, y):
        both = torch.exp(x) * y
        return both - both.mean(-1, keepdim=True)


class Two(nn.Module):
    def forward(self, x, y):
        return torch.exp(x) * y, torch.cos(x)


class Norm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Mixed(nn.Module):
    """A part that no pattern can say, in the middle."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        rolled = torch.roll(torch.tanh(self.up(x)), 1, dims=1)
        return self.down(rolled * torch.sigmoid(rolled)) * 0.5


class Cached(nn.Module):
    def forward(self, x, keep):
        return torch.exp(x) * torch.where(keep, x, -x)


class Bounded(nn.Module):
    """Operations of several operands, one end of a clamp open."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        bounded = torch.sigmoid(F.rms_norm(x, (WIDTH,), self.weight, 1e-6)).clamp(max=0.75)
        return bounded.clamp(min=0.125) * x


class BoundedByTensor(nn.Module):
    def forward(self, x, least):
        return torch.exp(torch.clamp(x, least)) * x


class Nothing(nn.Module):
    def forward(self, x):
        return torch.roll(x, 1, dims=1)
'''
