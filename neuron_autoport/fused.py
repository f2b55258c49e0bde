"""A fused weight of a rewritten class: which columns of which modules, and how the ranks share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WeightPart:
    """Columns `start:end` of a linear module's output, `layout` as the module keeps its weight.

    columns: instead of a range, the columns one by one. whole: are they all, in their order?
    """

    module: str
    weight: str
    bias: str | None
    layout: str
    start: int
    end: int
    whole: bool
    columns: tuple[int, ...] | None = None

    @property
    def width(self) -> int:
        """How many columns these are."""
        return len(self.columns) if self.columns is not None else self.end - self.start

    @property
    def index(self) -> slice | list[int]:
        """What to index the output dimension of the module's weight or bias with."""
        return list(self.columns) if self.columns is not None else slice(self.start, self.end)


@dataclass(frozen=True)
class FusedWeight:
    """One [in, out] weight of the rewritten class and the checkpoint tensors it is made of.

    name: in the rule; attr: attribute stem on the module (`<attr>_weight`, `_bias`, `_sizes`, `_heads`).
    sizes: widths of the outputs it is split into. shard: column, row, heads, replicate, or plan: as
    the model's own parallel plan has its parts.
    head_dim: width of a head where shard is heads. heads: sizes each output's columns are unfolded into.
    """

    name: str
    attr: str
    parts: tuple[WeightPart, ...]
    shard: str
    in_features: int
    sizes: tuple[int, ...]
    head_dim: int | None = None
    heads: tuple[tuple[int, ...], ...] = ()

    @property
    def out_features(self) -> int:
        return sum(p.width for p in self.parts)

    @property
    def has_bias(self) -> bool:
        return any(p.bias is not None for p in self.parts)


def plain_attributes(weight: FusedWeight, sizes: Sequence[int]) -> dict[str, Any]:
    """What the rewritten forward reads of a weight beside the tensors, by attribute name.

    Args:
        sizes: widths of its outputs on this rank.
    """
    found: dict[str, Any] = {}
    if weight.shard in ("heads", "plan"):
        found[f"{weight.attr}_sizes"] = list(sizes)
    if weight.heads:
        found[f"{weight.attr}_heads"] = weight.heads
    return found
