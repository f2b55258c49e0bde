"""A tiny configuration that keeps every kind of choice of a given one, verified by running it.

Which layers to keep is read from the model built on meta (`tiny_layers`), which fields are sizes
from a table of field names (`tiny_sizes`). Neither is trusted: the result is built, its kinds of
layers are compared with the original's, and it is run on twelve tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from neuron_autoport.errors import AutoportError, ModelError
from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.failures import BUILD_ERRORS, one_line
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny_layers import (
    LayerKinds,
    cut_layers,
    cut_to_two,
    kept_layers,
    layer_kinds,
    layer_stack,
    lost_kinds,
)
from neuron_autoport.models.tiny_sizes import Sizes, shrink

TOKENS = 12
_MOST_PARAMETERS = 50_000_000
_VARIANTS = (
    Sizes(),
    Sizes(hidden=128, intermediate=192),
    Sizes(hidden=128, heads=8, intermediate=256, expert_intermediate=128, rank=32),
    Sizes(hidden=256, heads=8, intermediate=512, expert_intermediate=256, experts=16, rank=64),
)


class TinyConfigError(AutoportError):
    """No tiny configuration could be derived; the caller proves each class on its own instead."""


def tiny_config(
    source: ModelSource | PretrainedConfig, variants: tuple[Sizes, ...] = _VARIANTS
) -> PretrainedConfig:
    """A configuration of the same class with tiny sizes and, as a rule, two to six layers.

    Kept: bias flags, activations, epsilons, layer types and their order, windows (4 wide, so that
    twelve tokens are more than a window), rotary type and parameters, soft-caps, multipliers, MHA /
    GQA / MQA, routing, ties. Shrunk: sizes only. The argument is not changed.

    Args:
        variants: sizes to try, the preferred first.

    Raises:
        TinyConfigError: with the reason why the first attempt failed.
    """
    config = source.config if isinstance(source, ModelSource) else source
    name = source.name if isinstance(source, ModelSource) else config.model_type
    try:
        model: nn.Module = meta_model(source)
        if not isinstance(model, PreTrainedModel):
            raise _failed(name, f"{type(model).__name__} has no base class of transformers")
        original = _describe(model, config)
    except ModelError as err:
        raise _failed(name, err.what) from err
    reasons: list[str] = []
    for data in _candidates(config, original, variants):
        try:
            tiny = _from_dict(config, data)
            _check(_with_config(source, tiny), tiny, original)
        except (_Unfit, ModelError) as err:
            reasons.append(str(err))
        except BUILD_ERRORS as err:
            reasons.append(one_line(err))
        else:
            return tiny
    raise _failed(name, reasons[0])


class _Unfit(Exception):
    """A candidate that builds but lost a kind of layer, or gives numbers that are no use."""


@dataclass(frozen=True)
class _Description:
    """What a tiny model must keep: its text configuration's place, and the kinds of its parts."""

    text_key: str | None
    layers: int
    kinds: LayerKinds
    classes: frozenset[str]


def _failed(name: str, reason: str) -> TinyConfigError:
    return TinyConfigError(
        f"No tiny configuration of `{name}` could be derived: {reason}",
        name,
        "the classes are proved one by one instead; `autoport inspect` shows which",
    )


def _text_key(config: PretrainedConfig) -> str | None:
    """Name of the nested configuration of the text model; None if `config` is it."""
    text = config.get_text_config()
    return next((k for k in config.sub_configs if getattr(config, k, None) is text), None)


def _describe(model: nn.Module, config: PretrainedConfig) -> _Description:
    key = _text_key(config)
    data = config.to_dict()
    text = data[key] if key else data
    stack = layer_stack(model, text)
    classes = frozenset(type(m).__name__ for m in model.modules())
    return _Description(key, len(stack), layer_kinds(stack, text), classes)


def _candidates(
    config: PretrainedConfig, original: _Description, variants: tuple[Sizes, ...]
) -> Iterator[dict[str, Any]]:
    """Configuration dicts to try, the preferred first."""
    data = config.to_dict()
    key = original.text_key
    text = data[key] if key else data
    for sizes in variants:
        for keep in kept_layers(original.kinds.exact):
            cut = cut_layers(text, keep, original.layers) if original.layers else text
            whole = {**data, key: cut} if key else cut
            nested = {
                k: cut_to_two(v)
                for k, v in whole.items()
                if isinstance(v, dict) and k != key and k in config.sub_configs
            }
            yield shrink({**whole, **nested}, sizes)


def _from_dict(config: PretrainedConfig, data: dict[str, Any]) -> PretrainedConfig:
    # Some nested configuration classes refuse what every configuration has: leave out its defaults.
    usual = PretrainedConfig().to_dict()
    clean = {
        key: {k: v for k, v in value.items() if k == "model_type" or usual.get(k, ...) != v}
        if key in config.sub_configs and isinstance(value, dict)
        else value
        for key, value in data.items()
    }
    tiny: PretrainedConfig = type(config).from_dict(copy.deepcopy(clean))
    tiny._attn_implementation = config._attn_implementation
    tiny.name_or_path = config.name_or_path
    return tiny


def _with_config(
    source: ModelSource | PretrainedConfig, tiny: PretrainedConfig
) -> ModelSource | PretrainedConfig:
    if isinstance(source, ModelSource):
        return replace(source, config=tiny, text_config=tiny.get_text_config())
    return tiny


def _check(
    source: ModelSource | PretrainedConfig, tiny: PretrainedConfig, original: _Description
) -> None:
    """Raise if the tiny model does not build, lost a kind, or does not run to finite logits."""
    model = meta_model(source)
    found = _describe(model, tiny)
    if (count := sum(p.numel() for p in model.parameters())) > _MOST_PARAMETERS:
        raise _Unfit(f"the tiny model still has {count:,} parameters")
    if lost := original.classes ^ found.classes:
        raise _Unfit(f"the tiny model differs in its classes: {', '.join(sorted(lost))}")
    if differing := lost_kinds(original.kinds, found.kinds):
        raise _Unfit(f"the tiny model's layers differ in kind: {'; '.join(differing[:4])}")
    # Eager: what the configuration names may belong to an engine, and run nowhere else.
    model = real_model(source, dtype=torch.float32, attn_implementation="eager")
    vocabulary = int(tiny.get_text_config().vocab_size)
    tokens = torch.tensor([[(3 + 7 * i) % (vocabulary - 3) + 1 for i in range(TOKENS)]])
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    if logits.shape[:2] != (1, TOKENS) or not bool(torch.isfinite(logits).all()):
        raise _Unfit("its logits are not finite, or not one row per token")
