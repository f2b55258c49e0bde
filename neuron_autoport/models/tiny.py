"""A tiny configuration that keeps every kind of choice of a given one, verified by running it.

Which layers to keep is read from the model built on meta (`tiny_layers`), which fields are sizes from a table
of field names (`tiny_sizes`). Neither is trusted: the result is built, its kinds of layers are compared with
the original's, and it is run on twelve tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from neuron_autoport.errors import AutoportError, ModelError
from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.failures import BUILD_ERRORS, one_line
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny_layers import cut_layers, kept_layers, layer_kinds, layer_stack
from neuron_autoport.models.tiny_sizes import Sizes, shrink

TOKENS = 12
_VARIANTS = (
    Sizes(),
    Sizes(hidden=128, intermediate=192),
    Sizes(hidden=128, heads=8, intermediate=256, expert_intermediate=128, rank=32),
    Sizes(hidden=256, heads=8, intermediate=512, expert_intermediate=256, experts=16, rank=64),
)


class TinyConfigError(AutoportError):
    """No tiny configuration could be derived; the caller proves each class on its own instead."""


def tiny_config(source: ModelSource | PretrainedConfig) -> PretrainedConfig:
    """A configuration of the same class with tiny sizes and two to about six layers.

    Kept: bias flags, activations, epsilons, layer types and their order, windows (4 wide, so that twelve
    tokens are more than a window), rotary type and parameters, soft-caps, multipliers, MHA / GQA / MQA,
    routing, ties. Shrunk: sizes only. The argument is not changed.

    Raises:
        TinyConfigError: with the reason of the last attempt.
    """
    config = source.config if isinstance(source, ModelSource) else source
    name = source.name if isinstance(source, ModelSource) else config.model_type
    reason = ""
    for candidate in _candidates(source, config):
        if isinstance(candidate, str):
            reason = reason or candidate
            continue
        tiny, wanted = candidate
        reason_now = _why_not(source, tiny, wanted)
        if reason_now is None:
            return tiny
        reason = reason or reason_now
    raise TinyConfigError(
        f"No tiny configuration of `{name}` could be derived: {reason}",
        name,
        "nothing: each rewritten class is proved on its own",
    )
