"""Is the checkpoint what the model takes? Held against transformers' own names and shapes while vLLM reads it.

vLLM counts a parameter as loaded once any part of it was: of a fused q/k/v weight without `q_proj` a third would be
whatever the memory held before, and of plain linear maps it asks nothing at all.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.core_model_loading import WeightConverter, WeightRenaming
from vllm.logger import init_logger

from neuron_autoport.errors import ModelError
from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.weights.lazy import Held, Leaf
from neuron_autoport.hosts.weights.names import ModelNames, Origin, own_name
from neuron_autoport.models.checkpoint import LEFT_OUT, check_files, check_loaded, listed

logger = init_logger("vllm.neuron_autoport")
COMPUTED = "Tensors that the checkpoint lacks are as the model computes them when it is built"
Weights = Iterable[tuple[str, torch.Tensor]]


class Checkpoint:
    """What was read of a checkpoint so far.

    Args:
        model: transformers' base model as it was built, on the meta device but for its buffers.
        where: the model's folder or hub id.
    """

    def __init__(self, model: Any, where: str) -> None:
        self.where = where
        self.names = ModelNames.of(model)
        mapping = copy.deepcopy(self.names.mapping)  # they keep what they were used for
        self.renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
        self.converters = [m for m in mapping if isinstance(m, WeightConverter)]
        self.parts = {name.partition(".")[0] for name in self.names.tensors}
        optional = [re.compile(p) for p in model._keys_to_ignore_on_load_missing or ()]
        wanted = [n for n in self.names.tensors if not any(p.search(n) for p in optional)]
        # Buffers that are saved, too: a bias of a router is one, and a zero in its place is a wrong choice. One that
        # the model has filled when it was built has, without the checkpoint, the value that it has in transformers.
        filled = {n for n, b in model.named_buffers() if not b.is_meta and bool(b.any())}
        self.filled = [name for name in wanted if name in filled]
        self.wanted = [name for name in wanted if name not in filled]
        self.seen: dict[str, torch.Tensor] = {}
        self.extra: list[str] = []
        self.last = ""

    def load(
        self, loader: Callable[[Weights], set[str]], weights: Weights, *, all_experts: bool
    ) -> set[str]:
        """What vLLM's loader says it has loaded, once the checkpoint is known to be whole.

        Args:
            loader: vLLM's. weights: the checkpoint as vLLM reads it.
            all_experts: tensors of all experts are read; else only of this rank's.

        Raises:
            HostError: a file cannot be read, or a tensor is missing or has another shape: named.
        """
        try:
            loaded = loader(self._read(weights))
        except (AssertionError, RuntimeError, ValueError, KeyError, IndexError) as error:
            if isinstance(error, HostError) or not self.last:
                raise
            said = str(error).partition("\n")[0] or "its shape is not the one meant"
            shape = list(self.seen[self.last].shape)
            what = f"Tensor {self.last} {shape} of the checkpoint cannot be loaded: {said}."
            raise HostError(what, self.where, self._step()) from error
        origins = self.names.origins(self.seen)
        self._check(missing=[self._said(n) for n in self.wanted if not self._has(n, origins)])
        if all_experts:
            self._check(mismatched=list(self._other_shapes(origins)))
        if self.extra:
            logger.warning("autoport: %s: %s", LEFT_OUT, listed(self.extra))
        if computed := [self._said(n) for n in self.filled if not self._has(n, origins)]:
            logger.warning("autoport: %s: %s", COMPUTED, listed(computed))
        return loaded

    def check_head(self, parameters: Iterable[str], loaded: set[str]) -> None:
        """Parameters beside the base model, as vLLM has them.

        Raises:
            HostError: one of them was not loaded.
        """
        self._check(missing=sorted(set(parameters) - loaded))

    def _read(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        found = iter(weights)
        while True:
            try:
                name, tensor = next(found)
            except StopIteration:
                return
            except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
                raise self._unreadable(error) from error
            self.last = name
            self.seen[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            own, is_part = self._own(name)
            meant = self.names.tensors.get(own)
            if meant is not None and not is_part and meant.shape != tensor.shape:
                self._check(mismatched=[(name, tensor.shape, meant.shape)])
            if meant is None and own.removeprefix(self.prefix).partition(".")[0] in self.parts:
                self.extra.append(name)
                continue
            yield name, tensor

    @property
    def prefix(self) -> str:
        return f"{self.names.prefix}."

    def _own(self, name: str) -> tuple[str, bool]:
        """Name of the model's tensor that a checkpoint tensor is, or (True) is a part of."""
        own, part = own_name(name, self.renamings, self.converters, self.names)
        return own, part is not None

    def keeps(self, name: str) -> bool:
        """Is it the model's tensor by the checkpoint's name, and by no other?"""
        kept, _ = own_name(name, [], [], self.names)
        return kept in self.names.tensors and self._own(name)[0] == kept

    def _said(self, name: str) -> str:
        """A model's tensor as this checkpoint calls its like."""
        return self.prefix + name if any(k.startswith(self.prefix) for k in self.seen) else name

    def _has(self, name: str, origins: dict[str, Origin]) -> bool:
        try:
            self.names.find(name, origins, self.where)
        except ValueError:
            return False
        return True

    def _other_shapes(self, origins: dict[str, Origin]) -> Iterator[tuple[str, Any, Any]]:
        """Of what transformers makes of several tensors."""
        for name, origin in origins.items():
            if name not in self.names.tensors or origin.converter is None:
                continue
            leaves = [Leaf(Held(self.seen[k])) for k in origin.keys]
            try:
                found = tuple(origin.build(leaves, name, self.names).shape)
            except ValueError:
                odd = self._odd(origin)
                what = f"Tensors of the checkpoint do not make {self._said(name)}: {odd}."
                raise HostError(what, self.where, self._step()) from None
            wanted = tuple(self.names.tensors[name].shape)
            if found != wanted:
                yield name, found, wanted

    def _odd(self, origin: Origin) -> str:
        """Which of many tensors that make one is unlike the others, or is not there."""
        alike: dict[str, list[str]] = {}
        for key, pattern in zip(origin.keys, origin.patterns, strict=True):
            alike.setdefault(pattern, []).append(key)
        numbers = {p: {tuple(re.findall(r"\d+", k)) for k in keys} for p, keys in alike.items()}
        for pattern, keys in alike.items():
            shapes = Counter(tuple(self.seen[k].shape) for k in keys)
            usual = shapes.most_common(1)[0][0]
            for key in keys:
                if tuple(self.seen[key].shape) != usual:
                    return f"{key} is {list(self.seen[key].shape)}, others are {list(usual)}"
            for gone in sorted(set.union(*numbers.values()) - numbers[pattern]):
                between = re.split(r"\d+", keys[0])
                return (
                    "".join(chain(*zip(between, gone, strict=False), between[-1:])) + " is missing"
                )
        return f"{origin.keys[0]} and its like do not fit together"

    def _step(self) -> str:
        return f"autoport inspect {self.where} shows what config.json asks for"

    def _unreadable(self, error: Exception) -> HostError:
        folder = Path(self.where)
        try:
            check_files(folder if folder.is_dir() else None)
        except ModelError as known:
            return HostError(known.what, known.where, known.next_step)
        what = f"The checkpoint cannot be read: {error}."
        return HostError(what, self.where, "copy it again from where it came from")

    def _check(self, missing: Sequence[str] = (), mismatched: Sequence[Any] = ()) -> None:
        info = {"missing_keys": missing, "mismatched_keys": mismatched}
        if any(info.values()):
            try:
                check_loaded({**info, "unexpected_keys": self.extra}, self.where)
            except ModelError as error:
                raise HostError(error.what, error.where, error.next_step) from None
