"""Adversarial inputs of the kernel tests, seeded: the same numbers in every run."""

from __future__ import annotations

from zlib import crc32

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("normal", "outliers", "large", "near_zero", "shifted")


def generator(*key: object) -> torch.Generator:
    return torch.Generator().manual_seed(crc32(repr(key).encode()))


def rows(*shape: int, kind: str = "normal", dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., H] of one kind.

    | kind | what it does to a norm |
    |---|---|
    | normal | nothing special |
    | outliers | one channel in eight is 40 times larger: it carries the statistics |
    | large | thousands; near float16's end |
    | near_zero | rows of 1e-3 where eps decides, one of 1e-20, one of zeros |
    | shifted | a mean of 100 with a spread of 1: cancellation |
    """
    x = torch.randn(*shape, generator=generator("rows", shape, kind))
    if kind == "outliers":
        x[..., ::8] *= 40.0
    elif kind == "large":
        x *= 3e3
    elif kind == "near_zero":
        x *= 1e-3
        flat = x.view(-1, x.shape[-1])
        flat[0] = 0.0
        flat[-1] *= 1e-17
    elif kind == "shifted":
        x += 100.0
    return x.to(dtype)


def weight(width: int, dtype: torch.dtype = torch.float32, seed: object = 0) -> Tensor:
    """[H] far from one: from a thousandth to some tens, every fifth below zero."""
    source = generator("weight", width, seed)
    w = torch.exp(2.0 * torch.randn(width, generator=source)).clamp(1e-3, 50.0)
    w[::5] = -w[::5]
    return w.to(dtype)


def tables(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """cos and sin [..., R] of angles that no two columns share, so a wrong column shows."""
    angle = torch.rand(*shape, generator=generator("tables", shape)) * 6.28
    return angle.cos().to(dtype), angle.sin().to(dtype)
