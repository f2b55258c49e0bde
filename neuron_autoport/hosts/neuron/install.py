"""Put the fused weights of a plan on a module of the meta model, one rank's share of each.

Like `rewrite.install`, but nothing is computed: parameters get their shape, and a recipe says what they
will be loaded from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from neuron_autoport.fused import FusedWeight, WeightPart, plain_attributes
from neuron_autoport.hosts.neuron.recipes import Part, Recipe, Share

if TYPE_CHECKING:
    from neuron_autoport.rewrite.plan import ClassPlan


def install_sharded(
    module: nn.Module,
    plan: ClassPlan,
    rewritten: type[nn.Module],
    names: tuple[str, str],
    ranks: int,
    recipes: dict[str, Recipe],
) -> None:
    """Rewrite a meta module in place.

    Args:
        names: dotted path of the module in the hosted model, and in the Hugging Face model.
        ranks: tensor-parallel ranks that share its weights; the sizes must divide.
        recipes: the recipes of the new parameters are added here.
    """
    hosted, original = names
    for site in plan.sites:
        for weight in site.weights:
            for kind, recipe, shape in fused_tensors(module, weight, original, ranks):
                like = getattr(module.get_submodule(weight.parts[0].module), weight.parts[0].weight)
                made = torch.empty(shape, dtype=like.dtype, device="meta")
                name = f"{weight.attr}_{kind}"
                module.register_parameter(name, nn.Parameter(made, requires_grad=False))
                recipes[f"{hosted}.{name}"] = recipe
            for name, value in plain_attributes(weight, local_sizes(weight, ranks)).items():
                setattr(module, name, value)
    for path in sorted({p for site in plan.sites for p in site.modules}):
        owner, _, name = path.rpartition(".")
        delattr(module.get_submodule(owner), name)
    module.__class__ = rewritten


def local_sizes(weight: FusedWeight, ranks: int) -> tuple[int, ...]:
    """Widths of the outputs of one rank."""
    return tuple(
        s.size if s else w for w, s in zip(weight.sizes, _shares(weight, ranks), strict=True)
    )


def _shares(weight: FusedWeight, ranks: int) -> list[Share | None]:
    """The rank's share of each output, along the columns."""
    if ranks == 1 or weight.shard not in ("heads", "column"):
        return [None] * len(weight.sizes)
    if weight.shard == "column":
        return [Share(-1, size // ranks) for size in weight.sizes]
    head = weight.head_dim
    assert head is not None
    shares: list[Share | None] = [Share(-1, weight.sizes[0] // ranks)]
    kv_heads = weight.sizes[1] // head
    if ranks >= kv_heads:
        shares += [Share(-1, head, ranks // kv_heads)] * 2
    else:
        shares += [Share(-1, kv_heads // ranks * head)] * 2
    return shares


def fused_tensors(
    module: nn.Module, weight: FusedWeight, original: str, ranks: int
) -> list[tuple[str, Recipe, tuple[int, ...]]]:
    """(weight or bias, recipe, shape) of the parameters a fused weight becomes.

    Args:
        module: that has the parts. original: its dotted path in the Hugging Face model.
    """
    columns = _columns(weight)
    shares = _shares(weight, ranks)
    if len(shares) != len(columns):
        shares = [shares[0]] * len(columns)
    out = sum(s.size if s else len(c) for (_, c), s in zip(columns, shares, strict=True))
    row = weight.shard == "row" and ranks > 1
    inputs = weight.in_features // ranks if row else weight.in_features
    parts = []
    for (part, chosen), share in zip(columns, shares, strict=True):
        name = f"{original}.{part.module}.{part.weight}"
        cut = Share(0, inputs) if row else share
        parts.append(Part(name, part.layout == "out_in", chosen, cut))
    found: list[tuple[str, Recipe, tuple[int, ...]]] = [
        ("weight", Recipe(tuple(parts)), (inputs, out))
    ]
    if weight.has_bias:
        biases = tuple(
            Part(f"{original}.{p.module}.{p.bias}" if p.bias else None, False, c, s)
            for (p, c), s in zip(columns, shares, strict=True)
        )
        scale = 1.0 / ranks if row else 1.0
        found.append(("bias", Recipe(biases, row=True, scale=scale), (1, out)))
    return found


def _columns(weight: FusedWeight) -> list[tuple[WeightPart, Sequence[int]]]:
    """(source, columns) of the weight, one entry per output that is shared on its own."""
    all_of: list[tuple[WeightPart, Sequence[int]]] = [
        (p, p.columns or range(p.start, p.end)) for p in weight.parts
    ]
    if weight.shard != "heads" or len(all_of) != 1:
        return all_of
    ((part, chosen),) = all_of  # packed: [q | k | v] in one module
    found: list[tuple[WeightPart, Sequence[int]]] = []
    at = 0
    for size in weight.sizes:
        found.append((part, chosen[at : at + size]))
        at += size
    return found
