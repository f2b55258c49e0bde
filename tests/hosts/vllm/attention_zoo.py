"""Layers that write out their attention in many spellings; look-alikes are in `attention_look_alikes.py`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

HEADS, SIZE, WIDTH = 4, 8, 32
PLACES = 64
SLOPES = (0.5, 0.25, 0.125, 0.0625)


class Layer(nn.Module):
    """Projections and heads; `mix` is the attention, [B, N, T, D] in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop, self.soft = nn.Dropout(0.1), nn.Softmax(dim=-1)
        earlier = torch.ones(PLACES, PLACES).tril()
        self.register_buffer("earlier", earlier[None, None], persistent=False)
        near = (earlier - earlier.tril(-5))[None, None].bool()
        self.register_buffer("near", near, persistent=False)
        self.register_buffer("slopes", torch.tensor(SLOPES), persistent=False)
        self.bias = nn.Parameter(torch.randn(1, HEADS, 1, PLACES))
        self.gate = nn.Linear(WIDTH, HEADS)

    def split(self, x: Any) -> Any:
        return [t.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def merge(self, y: Any) -> Any:
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.split(x)
        return self.merge(self.mix(q, k, v, mask))

    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        raise NotImplementedError


class Whole(nn.Module):
    """A model of one layer, with the mask that its kind gets."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        least = torch.finfo(torch.float32).min
        mask = torch.full((x.shape[1], x.shape[1]), least, device=x.device).triu(1)
        return self.layer(x, mask[None, None])


# Plain attention.


class ScaledAndMasked(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.transpose(-1, -2) * SIZE**-0.5
        scores = scores + mask
        weights = scores.softmax(-1)
        return weights @ v


class DividedAfterTheMask(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = torch.matmul(q.float(), k.float().mT)
        if mask is not None:
            scores = scores + mask
        scores /= math.sqrt(SIZE)
        weights = nn.Softmax(dim=-1)(scores).to(v.dtype)
        return torch.matmul(self.drop(weights), v)


class ScaledQueries(Layer):
    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.split(x)
        q = q * 0.3
        scores = torch.matmul(q, k.mT) + mask
        return self.merge(torch.matmul(scores.softmax(dim=3), v))


class TableOfEarlier(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = (q @ k.mT) / 3.0
        shown = self.earlier[:, :, : q.shape[-2], : k.shape[-2]]
        scores = scores * shown + -1e4 * (1 - shown)
        return [scores.softmax(-1) @ v][0]


class TableWithAWindow(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT
        shown = self.near[:, :, : q.shape[-2], : k.shape[-2]]
        least = torch.tensor(torch.finfo(scores.dtype).min, device=scores.device)
        scores = torch.where(shown, scores, least) + mask
        return scores.softmax(-1) @ v


class FlatHeadsWithAlibi(Layer):
    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (t.flatten(0, 1) for t in self.split(x))
        alibi = self.slopes[:, None] * torch.arange(x.shape[1], device=x.device)
        alibi = alibi.repeat(x.shape[0], 1)[:, None]
        scores = alibi.baddbmm(batch1=q, batch2=k.mT, beta=1.0, alpha=0.4)
        weights = scores.unflatten(0, (-1, HEADS)) + mask
        weights = self.soft(weights)
        y = torch.bmm(weights.flatten(0, 1), v)
        return self.merge(y.unflatten(0, (-1, HEADS))), weights


class AlibiBeforeTheScale(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = torch.matmul(q, k.mT)
        place = torch.arange(1 - k.shape[-2], 1, device=q.device)
        scores = (scores + place * self.slopes[:, None, None]) * 0.5
        scores = scores.masked_fill(mask < 0, float("-inf"))
        return torch.matmul(scores.float().softmax(-1).to(v.dtype), v)


class LeastOfAll(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        batch, heads, tokens, _ = q.shape
        q, k, v = (t.reshape(batch * heads, tokens, -1) for t in (q, k, v))
        empty = torch.zeros(batch * heads, tokens, tokens, device=q.device)
        scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=1.0, alpha=0.2)
        if scores.size() != (batch * heads, tokens, tokens):
            raise ValueError("no scores")
        scores = scores.view(batch, heads, tokens, tokens) + mask
        least = torch.full((), torch.finfo(scores.dtype).min, device=scores.device)
        scores = torch.max(scores, least).view(batch * heads, tokens, tokens)
        y = torch.bmm(F.dropout(scores.softmax(-1), 0.1, self.training), v)
        return y.view(batch, heads, tokens, -1)


class OneKeyHead(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        k, v = k[:, :1], v[:, 1:2]
        weights = torch.softmax(q @ k.mT + mask, dim=-1, dtype=torch.float32)
        return weights @ v


# What each is read as: scale, window, slopes.
PLAIN: dict[type[Layer], tuple[float, int | None, tuple[float, ...] | None]] = {
    ScaledAndMasked: (SIZE**-0.5, None, None),
    DividedAfterTheMask: (SIZE**-0.5, None, None),
    ScaledQueries: (1.0, None, None),
    TableOfEarlier: (1 / 3, None, None),
    TableWithAWindow: (1.0, 5, None),
    FlatHeadsWithAlibi: (0.4, None, SLOPES),
    AlibiBeforeTheScale: (0.5, None, (0.25, 0.125, 0.0625, 0.03125)),
    LeastOfAll: (0.2, None, None),
    OneKeyHead: (1.0, None, None),
}
