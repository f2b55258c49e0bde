"""The weights of a loaded exported model as the checkpoint has them."""

from __future__ import annotations

import torch

from neuron_autoport.export.serving import NeuronModel
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.recipes import Recipe
from neuron_autoport.hosts.weights.names import ModelNames


def checkpoint_tensors(model: NeuronModel) -> dict[str, torch.Tensor]:
    """The loaded weights under the names transformers has for them, fused ones taken apart again.

    For one rank. The head comes under its own name even where it is tied.
    """
    if model.ranks.size != 1:
        raise refuse("weights of one rank are a part of the model's", type(model).__name__)
    found: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        _take_apart(parameter.data, model.loading.recipes[name], model.loading.names, found)
    return found


def _take_apart(
    tensor: torch.Tensor, recipe: Recipe, names: ModelNames, found: dict[str, torch.Tensor]
) -> None:
    at = 0
    for part in recipe.parts:
        shape = names.tensors[part.name].shape if part.name is not None else ()
        width = len(part.columns) if part.columns is not None else tensor.shape[-1]
        piece = tensor.narrow(-1, at, width) if tensor.dim() else tensor
        at += width
        if part.name is None:
            continue
        piece = piece[0] if recipe.row else piece
        wanted = torch.Size(reversed(shape)) if part.transpose else shape
        target = found.get(part.name)
        if target is None:
            target = found[part.name] = torch.empty(shape, dtype=tensor.dtype)
        view = target.t() if part.transpose else target
        if part.columns is None:
            assert piece.shape == wanted, (part.name, piece.shape, wanted)
            view.copy_(piece)
        else:
            view[..., list(part.columns)] = piece
