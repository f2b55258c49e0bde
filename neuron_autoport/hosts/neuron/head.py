"""The vocabulary-parallel head: logits of the sampled rows, as the graph of the whole model has them."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from neuron_autoport.hosts.neuron.engine import Ranks


class LogitForm(Protocol):
    """Constant factors and soft-cap of the logits: `trace.head.Head`, or what a package says."""

    @property
    def scale(self) -> float: ...
    @property
    def soft_cap(self) -> float | None: ...
    @property
    def scale_after_cap(self) -> float: ...


class VocabHead(nn.Module):
    """scale_after_cap * cap(scale * (h @ W.T + b)) on this rank's part of the vocabulary.

    weight: [ceil(V / ranks), H], as the checkpoint keeps it. Rows past V are padding.
    """

    def __init__(
        self, head: LogitForm, vocab: int, width: int, bias: bool, dtype: torch.dtype, ranks: Ranks
    ) -> None:
        super().__init__()
        self.head, self.vocab, self.ranks = head, vocab, ranks
        self.rows = -(-vocab // ranks.size)
        self.weight = nn.Parameter(
            torch.empty(self.rows, width, dtype=dtype, device="meta"), requires_grad=False
        )
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(
                torch.empty(self.rows, dtype=dtype, device="meta"), requires_grad=False
            )

    def forward(self, hidden: torch.Tensor, rank: torch.Tensor | None) -> torch.Tensor:
        """hidden [R, H] -> this rank's logits [R, ceil(V / ranks)]; padding gets the lowest value."""
        logits = F.linear(hidden, self.weight, self.bias)
        if self.head.scale != 1.0:
            logits = logits * self.head.scale
        if self.head.soft_cap is not None:
            logits = torch.tanh(logits / self.head.soft_cap) * self.head.soft_cap
        if self.head.scale_after_cap != 1.0:
            logits = logits * self.head.scale_after_cap
        if self.rows * self.ranks.size == self.vocab:
            return logits
        assert rank is not None
        column = torch.arange(self.rows, device=logits.device) + rank * self.rows
        return logits.masked_fill(column >= self.vocab, torch.finfo(logits.dtype).min)

    def gather(self, logits: torch.Tensor) -> torch.Tensor:
        """All ranks' logits, [R, V]."""
        return self.ranks.all_gather(logits, 1)[:, : self.vocab]
