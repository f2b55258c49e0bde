"""Models from code of their own without transformers' base class: found, and made by their class alone.

transformers makes only what is derived from PreTrainedModel. Tracing, matching and rewriting need no more than an
nn.Module; what needs the base class are cache, attention and head, so serving.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from neuron_autoport.errors import ModelError
from neuron_autoport.models.failures import BUILD_ERRORS, build_failed
from neuron_autoport.models.kinds import CAUSAL_AUTO
from neuron_autoport.models.source import ModelSource

CODE = "AP412"
NEXT = (
    "derive it from PreTrainedModel, with its attention called through ALL_ATTENTION_FUNCTIONS; "
    f"`autoport explain {CODE}`"
)


def plain_class(config: PretrainedConfig) -> type[nn.Module] | None:
    """The class of the model's own code if it has no base class of transformers. This runs that code.

    Raises:
        ModelError: what `auto_map` names is no module. Whatever else loading the code raises passes through.
    """
    reference = (getattr(config, "auto_map", None) or {}).get(CAUSAL_AUTO)
    if not isinstance(reference, str):
        return None
    found: Any = get_class_from_dynamic_module(reference, config.name_or_path)
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        what = f"`{reference}` in `auto_map` is no torch.nn.Module."
        raise ModelError(what, f"{config.name_or_path}, field `auto_map`", "name the model's class")
    return None if issubclass(found, PreTrainedModel) else found


def build_plain(
    cls: type[nn.Module], config: PretrainedConfig, dtype: torch.dtype, attention: str | None
) -> nn.Module:
    """`cls(config)`, what it makes without naming a dtype in `dtype`; the caller puts the default back.

    Raises:
        ModelError: the class takes more than a configuration.
    """
    try:
        inspect.signature(cls).bind(config)
    except TypeError as error:
        what = f"{cls.__name__} is not made from its configuration alone: {error}."
        step = "give its other arguments defaults, or inspect it alone: autoport inspect FILE.py:CLASS --init"
        raise ModelError(what, config.name_or_path, step) from None
    if attention is not None:
        config._attn_implementation = attention
    torch.set_default_dtype(dtype)
    return cls(config)


def stops_serving(source: ModelSource) -> str | None:
    """What stops `port` and serving; None if the model has the base class.

    Raises:
        ModelError: the model's own code fails.
    """
    if not source.trust_remote_code:
        return None
    try:
        cls = plain_class(source.config)
    except BUILD_ERRORS as error:
        what = f"The model of `{source.name}`"
        raise build_failed(error, what=what, where=source.name, config=source.config) from error
    if cls is None:
        return None
    return (
        f"{CODE}: {cls.__name__} has no base class of transformers (PreTrainedModel), by which a host "
        "finds the cache, the attention and the head"
    )


def check_served(source: ModelSource) -> None:
    """For what runs in an engine.

    Raises:
        ModelError: no host serves the model.
    """
    stopped = stops_serving(source)
    if stopped is not None:
        raise ModelError(stopped, source.name, NEXT)
