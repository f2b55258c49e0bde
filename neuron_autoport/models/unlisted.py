"""Causal language models that transformers has, but lists under no model type.

The text part of a model with several parts, saved by itself, is one: its configuration has a model type of its own, for
which neither AutoModelForCausalLM nor AutoModel has a class. The checkpoint names the class that wrote it. If that is
transformers' own, for just this configuration, the auto classes are told of it, by transformers' own `register`.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import transformers
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, GenerationMixin, PretrainedConfig
from transformers import PreTrainedModel as Model
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def named_class(config: PretrainedConfig) -> type[Model] | None:
    """The causal language model among the `architectures` of a checkpoint that is for just this configuration."""
    for name in getattr(config, "architectures", None) or ():
        # Listed for the model of all parts: so it is one, and not a model of codes or of embeddings that generates.
        if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            found = getattr(transformers, name, None)
            if _generates(found) and found.config_class is type(config):
                return found
    return None


def _generates(found: Any) -> TypeGuard[type[Model]]:
    """Is it a model that generates, and no stand-in for one that lacks a library?"""
    return (
        isinstance(found, type) and issubclass(found, Model) and issubclass(found, GenerationMixin)
    )


def list_named(config: PretrainedConfig) -> str | None:
    """Let AutoModelForCausalLM build what the checkpoint names; its class name, None if it names nothing to build."""
    found = named_class(config)
    if found is None:
        return None
    # `exist_ok`: without it transformers passes over configurations of its own, and says nothing.
    AutoModelForCausalLM.register(type(config), found, exist_ok=True)
    return found.__name__


def list_base(model: nn.Module, base: str) -> bool:
    """Let AutoModel build the base model of a model that `list_named` found; False if that cannot be.

    Args:
        model: the whole, as AutoModelForCausalLM builds it. base: path of its base model; empty if it has none.
    """
    config: Any = model.config
    if type(config) in AutoModel._model_mapping or named_class(config) is None:
        return True
    found: Any = type(model.get_submodule(base))
    exact = issubclass(found, Model) and found.config_class is type(config)
    # Its tensors are found by the prefix: some name one that only the model of all parts has.
    if not base or not exact or found.base_model_prefix != base:
        return False
    AutoModel.register(type(config), found, exist_ok=True)
    return True
