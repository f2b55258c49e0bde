"""What the tests of packed weights share: the kinds of CPU this one is, numbers, and the distance from float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_autoport.hosts.vllm.packed.build import LEVELS

CAPABLE = [
    level for level in LEVELS if all(torch.cpu.get_capabilities().get(f) for f in level.features)
]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def distance(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> float:
    """From float64, in units of float32's rounding of one term of each sum's size."""
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = F.linear(x.double().abs(), weight.double().abs()) + (0 if bias is None else bias.abs())
    return float(((y - exact).abs() / (size * 2**-24)).max()) if y.numel() else 0.0
