"""The configuration that vLLM reads for a model of ours: transformers' own class, checked with vLLM 0.32.0.

For some model types vLLM has a class of its own. It may refuse what transformers' class takes, and what transformers
builds from it may be another model. So where `--model-impl neuron-transformers` is asked for, vLLM's reader of
`config.json` gives transformers' class; for other values of the flag it does what it did.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from neuron_autoport.hosts.vllm import CHECKED_WITH, MODEL_IMPL
from neuron_autoport.hosts.vllm.compat import installed_version

_ROUTED = "_neuron_autoport_routed"
# Is a configuration read for a model of ours? None: for something beside a model, such as its tokenizer.
_ours: contextvars.ContextVar[bool | None] = contextvars.ContextVar("ours", default=None)
Read = tuple[dict[str, Any], Any]  # what config.json says, and the configuration


def route_configurations() -> None:
    """Let vLLM read the configurations of our models by transformers' classes; once, and in a vLLM that we know."""
    from vllm.config import ModelConfig
    from vllm.transformers_utils import config as reading

    if installed_version() not in CHECKED_WITH or getattr(ModelConfig, _ROUTED, False):
        return
    parsers = reading._CONFIG_FORMAT_TO_CONFIG_PARSER
    parsers["hf"] = _own_parser(parsers["hf"], reading._CONFIG_REGISTRY)
    reading.is_rope_parameters_nested = _by_any_label(reading.is_rope_parameters_nested)
    ModelConfig.__post_init__ = _telling(ModelConfig.__post_init__)
    setattr(ModelConfig, _ROUTED, True)


def _telling(original: Callable[..., None]) -> Callable[..., None]:
    """vLLM's `ModelConfig.__post_init__`, in which the configuration is read: whose it is."""

    @functools.wraps(original)
    def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
        token = _ours.set(self.model_impl == MODEL_IMPL)
        try:
            original(self, *args, **kwargs)
        finally:
            _ours.reset(token)

    return post_init


def _own_parser(parser: Any, replaced: Any) -> type:
    """vLLM's reader of `config.json`. replaced: model types that it has classes of its own for."""

    class OwnConfigParser(parser):
        def parse(self, model: Any, trust_remote_code: bool, *args: Any, **kwargs: Any) -> Read:
            read = functools.partial(read_own, model, replaced, *args, **kwargs)
            ours = _ours.get()
            if ours and (own := read()) is not None:
                return own
            try:
                theirs: Read = super().parse(model, trust_remote_code, *args, **kwargs)
            except Exception:
                # A tokenizer does not know whose model it is for; in the engine's process nothing else is read.
                if ours is not None or (own := read()) is None:
                    raise
                return own
            return theirs

    return OwnConfigParser


def read_own(
    model: Any,
    replaced: Any,
    revision: str | None = None,
    code_revision: str | None = None,
    *,
    hf_overrides: Any = None,
    **kwargs: Any,
) -> Read | None:
    """A configuration by transformers' class, where vLLM has another; None if there are no such two.

    Args:
        model: folder or hub id. replaced: model types that vLLM has classes of its own for.
        hf_overrides: of vLLM's options; one that makes it a model of another type is vLLM's to read.
        kwargs: for the hub.
    """
    if callable(hf_overrides) or "model_type" in (hf_overrides or {}):
        return None
    kwargs.pop("trust_remote_code", None)  # transformers' class is none
    data, _ = PretrainedConfig.get_config_dict(model, revision=revision, **kwargs)
    cls = own_class(data, replaced)
    return cls and (data, cls.from_pretrained(model, revision=revision, **kwargs))


def own_class(data: dict[str, Any], replaced: Any) -> Any:
    """transformers' class for what a `config.json` says, where vLLM has another; None if there are no such two."""
    model_type = data.get("model_type")
    if model_type not in replaced or "auto_map" in data:
        return None
    return getattr(transformers, CONFIG_MAPPING_NAMES.get(model_type, ""), None)


def _by_any_label(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """vLLM's test for rotary parameters in parts; it knows parts by the names of layer types alone.

    A configuration may name them otherwise. Parameters that are no parts have a type, which is no dictionary.
    """

    @functools.wraps(original)
    def nested(parameters: Any) -> bool:
        if original(parameters):
            return True
        parts = [p for p in (parameters or {}).values() if p is not None]
        return bool(parts) and all(isinstance(p, dict) for p in parts)

    return nested
