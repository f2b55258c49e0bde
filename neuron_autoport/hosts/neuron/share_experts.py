"""Experts shared by the ranks: some experts each (expert parallel), or a part of every expert.

A part of an expert is a slice of its inner size: gate and up columns, down rows; the down bias is divided
by the ranks. Either way the ranks' results are summed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neuron_autoport.hosts.neuron.call import Call
from neuron_autoport.hosts.neuron.recipes import Part, Recipe, Share


def is_experts(module: nn.Module) -> bool:
    """Does a module run through transformers' experts interface?"""
    names = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "down_proj")
    return all(hasattr(module, name) for name in names)


def why_whole_experts(module: Any, ranks: int, by_expert: bool) -> str | None:
    """Why the ranks cannot share them; None if they can."""
    if by_expert:
        count = module.down_proj.shape[0]
        return f"{count} experts do not divide by {ranks} ranks" if count % ranks else None
    inner = module.down_proj.shape[1 if module.is_transposed else 2]
    return f"inner size {inner} does not divide by {ranks} ranks" if inner % ranks else None


def share_experts(
    module: Any, names: tuple[str, str], ranks: int, call: Call | None, recipes: dict[str, Recipe]
) -> None:
    """Cut the parameters of a meta module.

    Args:
        names: dotted path in the hosted model and in the Hugging Face model.
        call: expert parallel, with the rank in it; None: a part of every expert.
    """
    if call is not None:
        object.__setattr__(module, "neuron_call", call)
    for name, parameter in list(module.named_parameters(recurse=False)):
        source = f"{names[1]}.{name}"
        if call is not None:
            recipe = Recipe((Part(source, share=Share(0, parameter.shape[0] // ranks)),))
            shape = (parameter.shape[0] // ranks, *parameter.shape[1:])
        else:
            recipe, shape = _slice(module, name, source, tuple(parameter.shape), ranks)
        made = torch.empty(shape, dtype=parameter.dtype, device="meta")
        module.register_parameter(name, nn.Parameter(made, requires_grad=False))
        recipes[f"{names[0]}.{name}"] = recipe


def _slice(
    module: Any, name: str, source: str, shape: tuple[int, ...], ranks: int
) -> tuple[Recipe, tuple[int, ...]]:
    """Recipe and shape of a rank's part of one parameter of all experts."""
    if name == "down_proj_bias":
        return Recipe((Part(source),), scale=1.0 / ranks), shape
    if name.startswith("down_proj"):
        dim = 1 if module.is_transposed else 2
    elif name.endswith("_bias"):
        dim = 1
    else:
        dim = 2 if module.is_transposed else 1
    size = shape[dim] // ranks
    small = (*shape[:dim], size, *shape[dim + 1 :])
    if not name.startswith("gate_up") or not module.is_concatenated:
        return Recipe((Part(source, share=Share(dim, size)),)), small
    half, share = shape[dim] // 2, Share(dim, size // 2)  # [gate | up]
    parts = [Part(source, share=share, cut=(dim, a, a + half)) for a in (0, half)]
    return Recipe(tuple(parts), dim=dim), small
