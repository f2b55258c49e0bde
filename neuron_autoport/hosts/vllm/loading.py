"""Checkpoint tensors as transformers would load them, where vLLM's backend knows less.

Parts that transformers joins or splits, weights that are tied and saved once, and names that are to be ignored only
where the model has no such parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Chunk, Concatenate, WeightConverter

from neuron_autoport.hosts.vllm.compat import HostError

Weights = Iterable[tuple[str, torch.Tensor]]


class Loading:
    """What has to be done to the tensors of a checkpoint on their way to vLLM's loader.

    Args:
        model: transformers' base model, as it was built.
    """

    def __init__(self, model: Any) -> None:
        self.names = frozenset(model.state_dict())
        self.prefix = f"{model.base_model_prefix}." if model.base_model_prefix else ""
        self.ignored = [re.compile(p) for p in model._keys_to_ignore_on_load_unexpected or ()]
        # vLLM's backend would drop whatever these patterns are found in, real parameters too.
        model._keys_to_ignore_on_load_unexpected = None
        self.tied: dict[str, list[str]] = {}
        for target, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
            self.tied.setdefault(source, []).append(target)
        self.joins = [
            (converter.source_patterns, converter.target_patterns[0], step.dim)
            for converter, step in single_steps(model)
            if isinstance(step, Concatenate) and len(converter.target_patterns) == 1
        ]
        self.splits = [
            (_plain(converter.source_patterns[0]), converter.target_patterns, step.dim)
            for converter, step in single_steps(model)
            if isinstance(step, Chunk) and step.num_shards_attribute is None
            if len(converter.source_patterns) == 1
        ]

    def __call__(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors as vLLM's loader is to see them.

        Raises:
            HostError: a part of a joined parameter is not in the checkpoint.
        """
        for name, tensor in self._split(self._joined(weights)):
            own = self._own(name)
            if own not in self.names and any(p.search(name) for p in self.ignored):
                continue
            yield name, tensor
            for target in self.tied.get(own, ()):
                yield f"{name.removesuffix(own)}{target}", tensor

    def _own(self, name: str) -> str:
        """A checkpoint name as the base model has it."""
        return name if name in self.names else name.removeprefix(self.prefix).removeprefix("model.")

    def _joined(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        waiting: dict[str, dict[int, torch.Tensor]] = {}
        for name, tensor in weights:
            found = self._part(name)
            if found is None:
                yield name, tensor
                continue
            whole, index, count, dim = found
            parts = waiting.setdefault(whole, {})
            parts[index] = tensor
            if len(parts) == count:
                yield whole, torch.cat([parts[i] for i in range(count)], dim=dim)
                del waiting[whole]
        if waiting:
            whole = next(iter(waiting))
            raise HostError(
                f"the checkpoint has only {len(waiting[whole])} of the parts of `{whole}`", whole,
                "check that the checkpoint is complete",
            )  # fmt: skip

    def _split(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """A tensor that the model has in equal parts, as these."""
        for name, tensor in weights:
            found = next((s for s in self.splits if s[0] in name), None)
            if found is None or self._own(name) in self.names:
                yield name, tensor
                continue
            source, targets, dim = found
            parts = tensor.chunk(len(targets), dim=dim)
            yield from (
                (name.replace(source, _plain(t)), p) for t, p in zip(targets, parts, strict=True)
            )

    def _part(self, name: str) -> tuple[str, int, int, int] | None:
        """(name of the whole, index, number of parts, dimension) of a tensor that is a part."""
        for sources, target, dim in self.joins:
            for index, source in enumerate(sources):
                plain = _plain(source)
                if plain in name and self._own(name) not in self.names:
                    return name.replace(plain, _plain(target)), index, len(sources), dim
        return None


def single_steps(model: Any) -> Iterator[tuple[WeightConverter, Any]]:
    """The conversions of a checkpoint of this model that are one step."""
    for converter in get_model_conversion_mapping(model):
        if isinstance(converter, WeightConverter) and len(converter.operations) == 1:
            yield converter, converter.operations[0]


def _plain(pattern: str) -> str:
    """A pattern of transformers that is a name, as that name."""
    return pattern.replace("\\.", ".").strip("^$")
