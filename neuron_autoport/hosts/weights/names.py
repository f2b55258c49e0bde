"""Which tensors of a checkpoint make each tensor of the Hugging Face model.

Transformers renames, merges and splits checkpoint tensors while it loads (its conversion mapping). The
renaming is asked of transformers itself; merging, joining, splitting and transposing are done lazily,
any other conversion by transformers' own operation on whole tensors.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    MergeModulelist,
    Transpose,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.weights.lazy import Join, Lazy, Stack, Swap, Whole
from neuron_autoport.nearest import nearest


@dataclass(frozen=True)
class Origin:
    """Where a model tensor comes from: checkpoint keys, and how to make it of them.

    patterns: of each key, the converter's source pattern it fits. target: the converter's target pattern
    that is this tensor.
    """

    keys: tuple[str, ...]
    converter: Any = None
    patterns: tuple[str, ...] = ()
    target: str = ""

    def build(self, leaves: Sequence[Lazy], name: str, model: ModelNames) -> Lazy:
        """The tensor, from its keys' tensors in order."""
        if self.converter is None:
            (leaf,) = leaves
            return leaf
        values: dict[str, Any] = {}
        for pattern, leaf in zip(self.patterns, leaves, strict=True):
            values.setdefault(pattern, []).append(leaf)
        for operation in self.converter.operations:
            values = _apply(operation, values, self.converter, name, model)
        made = values[self.target] if self.target in values else values[name]
        result: Lazy = made[0] if isinstance(made, list) else made
        return result


@dataclass
class ModelNames:
    """A model's tensor names before it is rewritten, with all that loading by name needs.

    tensors: meta tensors of its state by name. tied: names that are another tensor.
    """

    prefix: str
    config: Any
    tensors: dict[str, torch.Tensor]
    tied: dict[str, str]
    mapping: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelNames:
        """Read a model that is not rewritten yet."""
        tied = {}
        if hasattr(model, "get_expanded_tied_weights_keys"):
            tied = dict(model.get_expanded_tied_weights_keys(all_submodels=True))
        mapping = get_model_conversion_mapping(model)
        return cls(model.base_model_prefix, model.config, dict(model.state_dict()), tied, mapping)

    def get_parameter(self, name: str) -> torch.Tensor:
        """For conversions that look at the model's own shape."""
        return self.tensors[name]

    def origins(self, keys: Iterable[str]) -> dict[str, Origin]:
        """Model tensor name → its origin, for a checkpoint with these keys."""
        mapping = copy.deepcopy(self.mapping)
        renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
        converters = [m for m in mapping if isinstance(m, WeightConverter)]
        by_pattern = {p: c for c in converters for p in c.source_patterns}
        found: dict[str, Origin] = {}
        for key in sorted(keys, key=_natural):
            name, pattern = own_name(key, renamings, converters, self)
            if pattern is None:
                found.setdefault(name, Origin((key,)))
                continue
            converter = by_pattern[pattern]
            before = found.get(name)
            keys_of = (*before.keys, key) if before else (key,)
            patterns = (*before.patterns, pattern) if before else (pattern,)
            for target in converter.target_patterns:
                other = name.replace(converter.target_patterns[0], target)
                found[other] = Origin(keys_of, converter, patterns, target)
        return found

    def find(self, name: str, origins: Mapping[str, Origin], where: str) -> tuple[str, Origin]:
        """The origin of a model tensor, or of the one it is tied to.

        Raises:
            NeuronHostError: the checkpoint has neither; with the nearest names it has.
        """
        for one in (name, self.tied.get(name), *(t for t, s in self.tied.items() if s == name)):
            if one is not None and one in origins:
                return one, origins[one]
        close = nearest(name, {k for o in origins.values() for k in o.keys}, 3)
        hint = f"; the nearest names are {', '.join(close)}" if close else ""
        raise refuse(f"the checkpoint has no tensor for {name}{hint}", where)


def own_name(
    key: str, renamings: list[Any], converters: list[Any], model: ModelNames
) -> tuple[str, str | None]:
    """Name of the model's tensor that a checkpoint's is, and the source pattern of the conversion it is a part of.

    As transformers has it: a tensor that is the model's by the checkpoint's name, and by the new name is not, keeps it.
    """
    name, pattern = rename_source_key(key, renamings, converters, model.prefix, model.tensors)
    if name in model.tensors:
        return name, pattern
    kept, _ = rename_source_key(key, [], [], model.prefix, model.tensors)
    return (kept, None) if kept in model.tensors else (name, pattern)


def _natural(key: str) -> list[Any]:
    """Sort key in which layers.2 comes before layers.10."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", key)]


def _apply(
    operation: Any, values: dict[str, Any], converter: Any, name: str, model: ModelNames
) -> dict[str, Any]:
    sources, targets = converter.source_patterns, converter.target_patterns
    single = len(values) == 1
    if type(operation) is MergeModulelist:
        return {
            (targets[0] if single and len(targets) == 1 else p): Stack(_many(v), operation.dim)
            for p, v in values.items()
        }
    if type(operation) is Concatenate and operation.num_shards_attribute is None:
        parts = [x for p in sources if p in values for x in _many(values[p])]
        return {targets[0]: Join(parts, operation.dim)}
    if type(operation) is Chunk and operation.num_shards_attribute is None and single:
        return _chunked(_one(values), operation.dim, targets)
    if type(operation) is Transpose and not operation.check_dims and single:
        target = targets[0] if len(targets) == 1 else sources[0]
        return {target: Swap(_one(values), operation.dim0, operation.dim1)}
    real = {p: [x.read() for x in _many(v)] for p, v in values.items()}
    made = operation.convert(
        real,
        source_patterns=sources,
        target_patterns=targets,
        full_layer_name=name,
        model=SimpleNamespace(get_parameter=model.get_parameter, config=model.config),
        config=model.config,
    )
    return {p: [Whole(t) for t in (v if isinstance(v, list) else [v])] for p, v in made.items()}


def _chunked(tensor: Lazy, dim: int, targets: Sequence[str]) -> dict[str, Any]:
    size = -(-tensor.shape[dim] // len(targets))
    total = tensor.shape[dim]
    return {
        t: tensor.narrow(dim, i * size, min((i + 1) * size, total)) for i, t in enumerate(targets)
    }


def _many(value: Any) -> list[Lazy]:
    return value if isinstance(value, list) else [value]


def _one(values: dict[str, Any]) -> Lazy:
    return _many(next(iter(values.values())))[0]
