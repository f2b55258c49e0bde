"""Load a built model: parameters by recipe from the checkpoint, buffers from the model's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neuron_autoport.hosts.neuron.buffers import fill_buffers
from neuron_autoport.hosts.neuron.checkpoint import set_weight_loader, weight_loader
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.recipes import Recipe
from neuron_autoport.hosts.weights.lazy import Lazy, Leaf
from neuron_autoport.hosts.weights.names import ModelNames, Origin


class Loading:
    """How the parameters of one built model are loaded.

    names: of the Hugging Face model before it was rewritten. recipes: by parameter name; complete.
    settle: called when the buffers have their values.
    """

    def __init__(
        self,
        names: ModelNames,
        recipes: dict[str, Recipe],
        ranks: Ranks,
        settle: Callable[[], None],
    ) -> None:
        self.names, self.recipes, self.ranks, self.settle = names, recipes, ranks, settle

    def load(self, model: nn.Module, checkpoint: Any, device: torch.device | str) -> None:
        """Read all parameters of `model` for this rank from an open checkpoint."""
        keys, path = checkpoint.get_tensor_names(), str(getattr(checkpoint, "where", "checkpoint"))
        as_model = getattr(checkpoint, "as_model", False)
        origins = {k: Origin((k,)) for k in keys} if as_model else self.names.origins(keys)
        mappings: dict[str, list[str]] = {}
        used: set[str] = set()
        for name, parameter in model.named_parameters():
            found = {n: self.names.find(n, origins, path) for n in self.recipes[name].names}
            mappings[name] = list(dict.fromkeys(k for _, o in found.values() for k in o.keys))
            again = not used.isdisjoint(mappings[name])  # tied: read again, kept as another tensor
            used.update(mappings[name])
            transform = self._transform(name, found, mappings[name], tuple(parameter.shape), again)
            set_weight_loader(parameter, weight_loader(transform))
        rank, size = self.ranks.rank, self.ranks.size
        if (
            torch.distributed.is_initialized()
            and not as_model
            and hasattr(checkpoint, "load_sharded_pipelined")
        ):
            loaded = checkpoint.load_sharded_pipelined(rank, size, model, mappings, device)
        else:
            loaded = checkpoint.load_sharded(rank, size, model, mappings, device)
        model.load_state_dict(loaded.state_dict, strict=False, assign=True)
        self._finish(model, device, path)

    def skip(self, model: nn.Module, device: torch.device | str) -> None:
        """Buffers only; parameters stay on the meta device."""
        fill_buffers(model, device, "load_weights_lite")
        self.settle()

    def _finish(self, model: nn.Module, device: torch.device | str, path: str) -> None:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        fill_buffers(model, device, path)
        self.settle()
        tensors = (*model.named_parameters(), *model.named_buffers())
        left = [name for name, tensor in tensors if tensor.is_meta]
        if left:
            raise refuse(f"{len(left)} tensors were not loaded, {left[0]} among them", path)

    def _transform(
        self,
        name: str,
        found: dict[str, tuple[str, Origin]],
        keys: list[str],
        shape: tuple[int, ...],
        copied: bool,
    ) -> Callable[[list[Any], int], torch.Tensor]:
        recipe, names = self.recipes[name], self.names

        def transform(slices: list[Any], rank: int) -> torch.Tensor:
            leaves = dict(zip(keys, (Leaf(s) for s in slices), strict=True))
            tensors: dict[str, Lazy] = {}
            for wanted, (source, origin) in found.items():
                tensors[wanted] = origin.build([leaves[k] for k in origin.keys], source, names)
                given, has = names.tensors[wanted].shape, tensors[wanted].shape
                if tuple(given) != tuple(has):
                    raise refuse(
                        f"{wanted} is {list(has)} in the checkpoint and {list(given)} in the model"
                    )
            tensor = recipe.make(tensors, rank)
            if tuple(tensor.shape) != shape:
                raise refuse(
                    f"{name}: {list(tensor.shape)} was loaded where {list(shape)} is meant"
                )
            return tensor.clone() if copied else tensor

        return transform
