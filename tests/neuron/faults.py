"""Deliberate faults in what the runner hands to a model: none of them may change a token.

The contract's code and its documentation disagree on padding, and a real cache holds what earlier
requests left. A model must not care.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

GARBAGE = 37.0


@dataclass(frozen=True)
class Faults:
    """What padding and unused memory look like; the defaults are what the plugin's code does.

    pad_slot: slot of padding tokens (0; -1 in the docs). null_block: filler of block tables (-1).
    pad_id: id of padding tokens. pad_rows: block-table rows of padding requests: "stale" (what the
    batch's table holds there), "null", or "live" (another request's blocks).
    pad_position: position of a decode batch's padding rows.
    poison: what unused cache blocks hold: nothing, "garbage" (large numbers) or "nan"; a block that
    comes into use holds garbage at worst, since the plugin's formula weighs masked values with 0.
    """

    pad_slot: int = 0
    null_block: int = -1
    pad_id: int = 0
    pad_rows: Literal["stale", "null", "live"] = "stale"
    pad_position: int = 0
    poison: Literal["", "garbage", "nan"] = ""

    def unused(self, blocks: Tensor) -> None:
        """Poison a view of cache blocks nobody owns."""
        if self.poison == "nan":
            blocks.fill_(float("nan"))
        elif self.poison == "garbage":
            self.in_use(blocks)

    def in_use(self, blocks: Tensor) -> None:
        """Put garbage into a view of cache blocks that come into use."""
        if self.poison:
            signs = torch.arange(blocks.numel(), device=blocks.device) % 2 * 2 - 1
            blocks.copy_((signs * GARBAGE).view(blocks.shape))


NONE = Faults()

# The faults every model is put through, by name.
ALL: dict[str, Faults] = {
    "pad slots -1": replace(NONE, pad_slot=-1),
    "pad slots beyond the cache": replace(NONE, pad_slot=10**6),
    "null blocks 0": replace(NONE, null_block=0),
    "other pad ids": replace(NONE, pad_id=3),
    "null pad rows": replace(NONE, pad_rows="null"),
    "live pad rows": replace(NONE, pad_rows="live"),
    "garbage in reused blocks": replace(NONE, poison="garbage"),
    # A stale padding row would read the NaN, and its own K and V would carry it into the null block.
    "NaN in unused blocks": replace(NONE, poison="nan", pad_rows="null"),
}
