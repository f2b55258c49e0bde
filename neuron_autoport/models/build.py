"""Build a causal language model from its configuration: on meta (no memory), or small and real.

`meta_model` costs no weight memory and no initialisation, whatever the model's size. Parameters
*and* buffers (rotary tables included) are on the meta device, created in the dtype that loading a
checkpoint of `dtype` would give: `_keep_in_fp32_modules_strict` is honoured. `real_model` makes a
CPU model with the weights of `weights.adversarial_`. Neither changes the caller's configuration,
torch's default dtype, nor the global random state.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from neuron_autoport.models.failures import BUILD_ERRORS, build_failed
from neuron_autoport.models.plain import build_plain, plain_class
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.weights import adversarial_


def meta_model(
    source: ModelSource | PretrainedConfig,
    *,
    dtype: torch.dtype = torch.bfloat16,
    attn_implementation: str | None = None,
    one_dtype: bool = False,
) -> PreTrainedModel:
    """The causal language model of `source`, every tensor on the meta device, in eval mode.

    Code of a model's own may give an nn.Module without transformers' base class: see `plain.py`.

    Args:
        source: what `load_model_config` returned, or a configuration. It is not changed.
        dtype: dtype of parameters, as if a checkpoint had been loaded in it.
        attn_implementation: as in transformers ("eager", "sdpa", ...); None keeps transformers'
        choice.
        one_dtype: also what loading would keep in float32 is in `dtype`.

    Raises:
        ModelError: the configuration does not build; names the fields that are the likely reason.
    """
    with torch.device("meta"):
        model = _from_config(source, dtype, attn_implementation)
    if not one_dtype:
        _keep_in_fp32(model, dtype)
    return model


def real_model(
    source: ModelSource | PretrainedConfig,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """A CPU model with adversarial weights, in eval mode. For small configurations.

    The same seed gives the same weights in every dtype, up to rounding to that dtype.

    Raises:
        ModelError: the configuration does not build.
    """
    with torch.random.fork_rng(devices=[]), _filled_empty(), torch.device("cpu"):
        torch.manual_seed(seed)
        model = _from_config(source, dtype, attn_implementation)
        _keep_in_fp32(model, dtype)
        adversarial_(model, seed)
    return model


def _from_config(
    source: ModelSource | PretrainedConfig, dtype: torch.dtype, attn_implementation: str | None
) -> PreTrainedModel:
    kwargs: dict[str, Any] = {"dtype": dtype}
    if attn_implementation is not None:
        kwargs["attn_implementation"] = attn_implementation
    if isinstance(source, ModelSource):
        given, name = source.config, source.name
        if source.trust_remote_code:
            kwargs["trust_remote_code"] = True
        if source.prepare is not None:
            kwargs["attn_implementation"] = "eager"
    else:
        given, name = source, source.model_type
    config = copy.deepcopy(given)
    default_dtype = torch.get_default_dtype()
    try:
        trusted = "trust_remote_code" in kwargs
        plain = plain_class(config) if trusted else None
        if plain is not None:
            attention: str | None = kwargs.get("attn_implementation")
            model: Any = build_plain(plain, config, dtype, attention)
        else:
            model = AutoModelForCausalLM.from_config(config, **kwargs)
    except BUILD_ERRORS as err:
        raise build_failed(err, what=f"The model of `{name}`", where=name, config=config) from err
    finally:
        torch.set_default_dtype(default_dtype)
    if isinstance(source, ModelSource) and source.prepare is not None:
        source.prepare(model, attn_implementation)
    built: PreTrainedModel = model.eval()  # or a plain module: see models/plain.py
    return built


def _keep_in_fp32(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Make float32 what loading a half-precision checkpoint would make float32.

    Only loading reads `_keep_in_fp32_modules_strict`, building from a configuration does not. As in
    loading, the names are searched anywhere in a checkpoint key, `*` standing for anything.
    """
    wanted = getattr(model, "_keep_in_fp32_modules_strict", None)
    if not wanted or dtype not in (torch.float16, torch.bfloat16):
        return
    pattern = re.compile("|".join(name.replace("*", ".*") for name in sorted(wanted)))
    for key, tensor in model.state_dict(keep_vars=True).items():
        if not tensor.is_floating_point() or not pattern.search(key):
            continue
        if isinstance(tensor, nn.Parameter):
            tensor.data = tensor.data.float()
        else:
            owner, _, name = key.rpartition(".")
            model.get_submodule(owner)._buffers[name] = tensor.float()


@contextlib.contextmanager
def _filled_empty() -> Iterator[None]:
    """Make `torch.empty` give NaN: a tensor no initialisation wrote to is found, not inherited.

    torch does that in deterministic mode (`torch.utils.deterministic.fill_uninitialized_memory`, on
    by default).
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
