"""Fused weights of an exported class: declared in its `__init__`, loaded from the checkpoint's tensors.

    fuse(self, "qkv", "q_proj", "k_proj", "v_proj", shard="heads", head_dim=64, split=True)

The linear modules that upstream's `__init__` made say sizes and names; the fused parameters `[in, out]` take
their place when the model is put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from neuron_autoport.fused import FusedWeight, WeightPart, plain_attributes
from neuron_autoport.hosts.neuron.engine import Ranks, current_ranks
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.install import fused_tensors, local_sizes
from neuron_autoport.hosts.neuron.recipes import Part, Recipe, Share
from neuron_autoport.hosts.neuron.sharing import why_not_shared

NOTES = "export_notes"


@dataclass
class Notes:
    """What an `__init__` declared. recipes: by parameter; names without the module's own path.

    taken: child modules that fused weights replace. norms: query and key norm and their epsilon.
    shared: by the ranks. whole: declared so, but this many ranks cannot share it: each has all of it.
    """

    recipes: dict[str, Recipe] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    norms: tuple[str, str, float] | None = None
    shared: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Columns:
    """Some columns of a linear module's output."""

    module: str
    index: tuple[int, ...]


def columns(module: str, *runs: tuple[int, int]) -> Columns:
    """Columns start:end of a module's output, run after run."""
    return Columns(module, tuple(c for start, end in runs for c in range(start, end)))


def every(start: int, width: int, step: int, count: int) -> list[tuple[int, int]]:
    """`count` runs of `width` columns, the first at `start`, `step` apart."""
    return [(start + i * step, start + i * step + width) for i in range(count)]


def notes_of(module: nn.Module) -> Notes:
    """What a module's `__init__` declared so far."""
    notes: Notes = module.__dict__.setdefault(NOTES, Notes())
    return notes


def fuse(
    module: nn.Module,
    attr: str,
    *parts: str | Columns,
    shard: str | None = None,
    head_dim: int | None = None,
    split: bool | Sequence[int] = False,
    heads: Sequence[Sequence[int]] = (),
) -> None:
    """Declare `<attr>_weight` [in, out], and `<attr>_bias` [1, out] where a part has one.

    Args:
        parts: linear children, side by side in this order. shard: `heads`, `column` or `row` where the
            ranks share it; the result of a `row` product must then be summed, by `self.tp`. Where the sizes
            do not divide, each rank keeps the whole module, and its `tp` has one rank. head_dim: of a head, for
            `heads`. split: also `<attr>_sizes`, the widths of the outputs: those of the parts, or given.
        heads: sizes each output's columns are unfolded into, as `<attr>_heads`.

    Raises:
        NeuronHostError: this many ranks cannot share it, and share a part of the module already.
    """
    ranks = _ranks(module) if shard is not None else 1
    found = tuple(_part(module, p) for p in parts)
    inputs = _weight(module, found[0]).shape[1 if found[0].layout == "out_in" else 0]
    sizes = tuple(p.width for p in found) if isinstance(split, bool) else tuple(split)
    kind = shard or ("plan" if split else "replicate")
    unfolded = tuple(tuple(h) for h in heads)
    weight = FusedWeight(attr, attr, found, kind, inputs, sizes, head_dim, unfolded)
    reason = why_not_shared(weight, ranks) if ranks > 1 else None
    notes = notes_of(module)
    if reason is not None:
        if notes.shared:
            raise refuse(f"{type(module).__name__}: {reason}", type(module).__name__)
        keep_whole(module)
        ranks = 1
    for what, recipe, shape in fused_tensors(module, weight, "", ranks):
        like = _weight(module, found[0])
        made = torch.empty(shape, dtype=like.dtype, device="meta")
        module.register_parameter(f"{attr}_{what}", nn.Parameter(made, requires_grad=False))
        notes.recipes[f"{attr}_{what}"] = recipe
    for name, value in plain_attributes(weight, local_sizes(weight, ranks)).items():
        setattr(module, name, value)
    notes.taken |= {p.module for p in found}
    notes.shared |= shard is not None and not notes.whole


def keep_whole(module: nn.Module) -> None:
    """Let each rank have all of a module: its sums over the ranks are over one."""
    notes = notes_of(module)
    notes.whole, notes.shared = True, False
    alone: Any = Ranks()
    module.tp = alone


def _ranks(module: nn.Module) -> int:
    """How many ranks share a module."""
    return 1 if notes_of(module).whole else current_ranks().size


def shard_heads(module: nn.Module, name: str) -> None:
    """Declare that a parameter has one number per head, of which each rank keeps its own."""
    whole: Any = getattr(module, name)
    if notes_of(module).whole:
        return
    size = whole.shape[0] // _ranks(module)
    cut = torch.empty(size, dtype=whole.dtype, device="meta")
    module.register_parameter(name, nn.Parameter(cut, requires_grad=False))
    notes_of(module).recipes[name] = Recipe((Part(f".{name}", share=Share(0, size)),))


def share_experts(module: nn.Module, *, shared: bool) -> None:
    """Declare experts: the ranks share them, and the forward sums their results; or each has all."""
    notes_of(module).shared = shared


def head_norms(module: nn.Module, query: str, key: str, eps: float) -> None:
    """Declare the norms over a head that fused calls do themselves, from `head_q_gamma` and `head_k_gamma`: the
    norms' weights, with what is added to them."""
    notes_of(module).norms = (query, key, eps)


def below(recipe: Recipe, path: str) -> Recipe:
    """A declared recipe with the full names of a module at `path`."""
    parts = tuple(
        replace(p, name=None if p.name is None else f"{path}{p.name}") for p in recipe.parts
    )
    return replace(recipe, parts=parts)


def _weight(module: nn.Module, part: WeightPart) -> torch.Tensor:
    found: torch.Tensor = getattr(module.get_submodule(part.module), part.weight)
    return found


def _part(module: nn.Module, given: str | Columns) -> WeightPart:
    name = given if isinstance(given, str) else given.module
    owner: Any = module.get_submodule(name)
    layout = "out_in" if isinstance(owner, nn.Linear) else "in_out"
    bias = "bias" if getattr(owner, "bias", None) is not None else None
    width = owner.weight.shape[0 if layout == "out_in" else 1]
    if isinstance(given, str):
        return WeightPart(name, "weight", bias, layout, 0, width, True)
    index = given.index
    if index == tuple(range(index[0], index[-1] + 1)):
        return WeightPart(name, "weight", bias, layout, index[0], index[-1] + 1, False)
    return WeightPart(name, "weight", bias, layout, 0, 0, False, index)
