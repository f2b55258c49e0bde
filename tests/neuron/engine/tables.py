"""Requests and their block tables, one table per group of layers.

The batch's tables are kept between steps as vLLM keeps them: a row of a request that left stays as
it was until another request takes its place, and a padding row shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.neuron.engine.caches import Caches, Group
from tests.neuron.engine.options import PARTITION, Options


@dataclass
class Request:
    """One prompt on its way. `computed`: tokens in the cache; `blocks`: per group, 0 = null."""

    index: int
    prompt: list[int]
    wanted: int
    arrival: int = 0
    sampling: tuple[float, float, float] = (-1.0, 1.0, 0.0)
    allowed: Tensor | None = None
    computed: int = 0
    output: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all wanted tokens are there."""
        return len(self.output) >= self.wanted


class Tables:
    """Allocates blocks and shows them as the tensors a step gets."""

    def __init__(self, caches: Caches, options: Options) -> None:
        self.caches, self.options = caches, options
        shape = (options.decode_batches[-1], options.width)
        self.rows = [torch.zeros(shape, dtype=torch.int32) for _ in caches.groups]

    def reserve(self, request: Request, tokens: int) -> None:
        """Blocks for the next `tokens` tokens; blocks that left the window are given back."""
        size = self.options.block_size
        if not request.blocks:
            request.blocks = [[] for _ in self.caches.groups]
        for group, blocks in zip(self.caches.groups, request.blocks, strict=True):
            if group.window is not None:
                gone = max(0, request.computed - group.window + 1) // size
                for i in range(min(gone, len(blocks))):
                    if blocks[i]:
                        self.caches.give_back(blocks[i])
                        blocks[i] = 0
            while len(blocks) * size < request.computed + tokens:
                blocks.append(self.caches.take())

    def release(self, request: Request) -> None:
        """Give back all blocks of a request."""
        for blocks in request.blocks:
            for block in blocks:
                if block:
                    self.caches.give_back(block)
        request.blocks = []

    def place(self, requests: list[Request]) -> None:
        """Write the requests' blocks into the batch's rows; the other rows stay as they are."""
        for group, rows in enumerate(self.rows):
            for at, request in enumerate(requests):
                blocks = request.blocks[group]
                rows[at] = 0
                rows[at, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)

    def slots(self, request: Request, group: int, count: int) -> list[int]:
        """The slots of the request's next `count` tokens."""
        size = self.options.block_size
        at = range(request.computed, request.computed + count)
        return [request.blocks[group][p // size] * size + p % size for p in at]

    def one(self, request: Request, group: int) -> Tensor:
        """The request's full table [1, width]; the null block is -1."""
        row = torch.zeros(1, self.options.width, dtype=torch.int32)
        blocks = request.blocks[group]
        row[0, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        return self._shown(row)

    def batch(self, group: int, real: int, padded: int) -> Tensor:
        """The full tables of a decode step [padded, width]."""
        rows = self.rows[group][:padded].clone()
        kind = self.options.faults.pad_rows
        if kind == "null":
            rows[real:] = 0
        elif kind == "live":
            rows[real:] = rows[0]
        return self._shown(rows)

    def _shown(self, rows: Tensor) -> Tensor:
        null = torch.full_like(rows, self.options.faults.null_block)
        return torch.where(rows == 0, null, rows)


def window_width(window: int, options: Options) -> int:
    """Blocks of a sliding-window group's decode table."""
    step = max(1, PARTITION // options.block_size)
    blocks = -(-(window // options.block_size + 1) // step) * step
    return min(blocks, options.width)


def trimmed(
    table: Tensor, contexts: list[int], group: Group, options: Options
) -> tuple[Tensor, Tensor]:
    """A window group's decode tables and the positions of their first slots, int32 [rows]."""
    assert group.window is not None
    count = window_width(group.window, options)
    first = [max(0, context // options.block_size - count + 1) for context in contexts]
    kept = [row[start : start + count] for row, start in zip(table, first, strict=True)]
    null = options.faults.null_block
    rows = torch.full((len(kept), count), null, dtype=torch.int32)
    for at, row in enumerate(kept):
        rows[at, : row.shape[0]] = row
    offsets = torch.tensor([start * options.block_size for start in first], dtype=torch.int32)
    return rows, offsets
