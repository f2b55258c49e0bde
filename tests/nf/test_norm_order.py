"""May a model's norm go into `NF.mlp`? Its order of rounding against a model's, both against float64.

The reason that plans give (`hosts.neuron.norm_apart`) rests on these figures.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from neuron_autoport import nf as NF
from neuron_autoport.prove.compare import compare

EPS = 1e-6
SIZES = ((256, 512), (576, 1536), (1024, 2048))


def layer(width: int, inner: int, size: float) -> dict[str, Tensor]:
    """Inputs and weights that bfloat16 holds exactly, as float64. size: of the hidden states."""
    draw = torch.Generator().manual_seed(width)

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(*shape, generator=draw, dtype=torch.float64) * scale
        return made.bfloat16().double()

    return {
        "x": some(64, width, scale=size),
        "residual": some(64, width, scale=size),
        "gamma": 1 + some(width, scale=0.5),
        "gate": some(width, inner, scale=width**-0.5),
        "up": some(width, inner, scale=width**-0.5),
        "down": some(inner, width, scale=inner**-0.5),
    }


def exact(given: dict[str, Tensor]) -> Tensor:
    """The layer's formula in float64."""
    total = given["x"] + given["residual"]
    normed = total / (total.square().mean(-1, keepdim=True) + EPS).sqrt() * given["gamma"]
    return (F.silu(normed @ given["gate"]) * (normed @ given["up"])) @ given["down"]


def apart(given: dict[str, Tensor]) -> Tensor:
    """As the hosts run it: transformers' own norm, then `NF.mlp`."""
    norm = LlamaRMSNorm(given["gamma"].shape[0], EPS).to(given["gamma"].dtype)
    norm.weight.data.copy_(given["gamma"])
    with torch.no_grad():
        normed = norm(given["x"] + given["residual"])
    out = NF.mlp(normed, given["gate"], given["up"], given["down"])
    assert isinstance(out, Tensor)
    return out


def inside(given: dict[str, Tensor]) -> Tensor:
    """Sum and norm in the call."""
    out = NF.mlp(
        given["x"],
        given["gate"],
        given["up"],
        given["down"],
        eps=EPS,
        ln_w=given["gamma"][None],
        norm_type=NF.NormType.RMS_NORM,
        fused_add_tensor=given["residual"],
    )
    assert isinstance(out, Tensor)
    return out


def to(given: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: value.to(dtype) for name, value in given.items()}


@pytest.mark.parametrize(("width", "inner"), SIZES)
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_in_bfloat16_it_is_further_from_the_truth_than_the_model(
    width: int, inner: int, size: float
) -> None:
    given = layer(width, inner, size)
    low = to(given, torch.bfloat16)
    found = compare(exact(given), apart(low), inside(low), torch.bfloat16)
    assert found.ratio > 1.05  # the model's own error is the most that the three-way rule allows


@pytest.mark.parametrize(("width", "inner"), SIZES)
def test_in_float32_it_is_the_same(width: int, inner: int) -> None:
    given = layer(width, inner, 30.0)
    single = to(given, torch.float32)
    assert compare(exact(given), apart(single), inside(single), torch.float32).passed
