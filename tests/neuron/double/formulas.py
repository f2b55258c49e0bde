"""Plain formulas of the double, computed in float64 (or what `state().compute` says).

`rounded` puts a value through the dtype the plugin's torch formula holds at that point: it is the
identity in a float32 test up to float32 rounding, and shows bfloat16's steps in a bfloat16 test.
"""

from __future__ import annotations

import math
from enum import Enum

import torch
from torch import Tensor

from tests.neuron.double.state import state


def up(x: Tensor) -> Tensor:
    """x in the dtype the formulas are computed in."""
    return x.to(state().compute)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x after one rounding to `dtype`, again in the computing dtype."""
    return x.to(dtype).to(state().compute)


def rms(x: Tensor, eps: float, gamma: Tensor | None, width: int | None = None) -> Tensor:
    """x / sqrt(sum(x^2) / width + eps) [* gamma], over the last dim; width: its size if None."""
    size = x.shape[-1] if width is None else width
    y = x / ((x * x).sum(-1, keepdim=True) / size + eps).sqrt()
    return y if gamma is None else y * up(gamma).reshape(-1)


def layer(x: Tensor, eps: float, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """Layer norm with the population variance, * gamma, + beta."""
    mean = x.mean(-1, keepdim=True)
    y = (x - mean) / (((x - mean) ** 2).mean(-1, keepdim=True) + eps).sqrt()
    y = y if gamma is None else y * up(gamma).reshape(-1)
    return y if beta is None else y + up(beta).reshape(-1)


def hidden_norm(
    x: Tensor, kind: Enum, eps: float, gamma: Tensor | None, beta: Tensor | None, width: int | None
) -> Tensor:
    """The norm that `mlp` and `qkv_proj` fold in, by its NormType."""
    if kind.name == "RMS_NORM":
        return rms(x, eps, gamma, width)
    if kind.name == "RMS_NORM_SKIP_GAMMA":
        return rms(x, eps, None, width)
    if kind.name == "LAYER_NORM":
        return layer(x, eps, gamma, beta)
    return x


def rope_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotation; cos and sin are half as wide as x."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rope_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation of the pairs (2i, 2i+1); cos and sin are half as wide as x."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dim; a row that is all -inf gives zeros."""
    dead = (scores == -math.inf).all(-1, keepdim=True)
    return torch.where(dead, 0.0, scores.softmax(-1))


def activate(x: Tensor, kind: Enum, *, swish_scale: float = 1.0) -> Tensor:
    """An ActFnType; Swish is x * sigmoid(swish_scale * x)."""
    if kind.name == "SiLU":
        return x / (1 + (-x).exp())
    if kind.name == "Swish":
        return x / (1 + (-swish_scale * x).exp())
    if kind.name == "GELU":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + inner.tanh())
