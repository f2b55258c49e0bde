"""Published peaks of the chips a roofline is drawn for.

Sources, per chip: AWS Neuron documentation, "Trainium2 Architecture" and "Trainium3 Architecture" (compute,
device memory). Both chips have eight NeuronCores; a rank is a logical core of two of them (LNC 2, the
plugin's default), so a quarter of the chip.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

RANKS_PER_CHIP = 4


@dataclass(frozen=True)
class Chip:
    """Peaks of a whole chip: FLOP/s by dtype, bytes/s of device memory. source: a page's title."""

    name: str
    flops: dict[torch.dtype, float]
    memory: float
    source: str

    def rank_flops(self, dtype: torch.dtype) -> float:
        """FLOP/s of one rank; a dtype without a published peak runs at that of float32."""
        return self.flops.get(dtype, self.flops[torch.float32]) / RANKS_PER_CHIP

    @property
    def rank_memory(self) -> float:
        """Bytes/s of one rank's share of device memory."""
        return self.memory / RANKS_PER_CHIP


def _chip(name: str, half: float, single: float, memory: float, source: str) -> Chip:
    flops = {torch.bfloat16: half, torch.float16: half, torch.float32: single}
    return Chip(name, flops, memory, f"AWS Neuron documentation, {source}")


CHIPS = {
    "trn2": _chip("trn2", 667e12, 181e12, 2.9e12, "Trainium2 Architecture"),
    "trn3": _chip("trn3", 671e12, 183e12, 4.9e12, "Trainium3 Architecture"),
}
