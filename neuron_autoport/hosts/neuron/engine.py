"""What the host asks of vLLM and of the plugin, and the same things of our own where they are absent.

The names of the plugin's modules are part of its contract with model classes. Where the NF functions go
to the plugin, its classes must be there too; elsewhere ours are used, so that a port can be run and
tested on any machine.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PretrainedConfig

from neuron_autoport import nf as NF
from neuron_autoport.hosts.neuron.errors import refuse

KV_MODULE = "vllm_neuron.model.kv_cache"


@dataclass(frozen=True)
class LayerSpec:
    """One layer of the KV cache. num_kv_heads: per rank. dtype is not read by the runner."""

    name: str
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    sliding_window_size: int | None = None
    chunk_size: int | None = None


@dataclass(frozen=True)
class KVSpec:
    """All layers of the KV cache."""

    layers: list[Any] = field(default_factory=list)


def plugin_module(name: str) -> Any:
    """A module of the plugin, or None where NF calls do not go to the plugin.

    Raises:
        NeuronHostError: the plugin is in use but has no such module.
    """
    if NF.backend() != "vllm_neuron":
        return None
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise refuse(
            f"the installed plugin has no {name}: {error}", name, "autoport doctor"
        ) from None


def kv_classes() -> tuple[Any, Any]:
    """The classes (KVSpec, LayerSpec)."""
    module = plugin_module(KV_MODULE)
    return (KVSpec, LayerSpec) if module is None else (module.KVSpec, module.LayerSpec)


class Ranks:
    """The tensor-parallel group: its size, this process's place in it, and its collectives.

    group: vLLM's group coordinator, or None for one rank.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else int(group.world_size)
        self.rank = 0 if group is None else int(group.rank_in_group)

    @property
    def device_group(self) -> Any:
        """The torch process group, or None."""
        return None if self.size == 1 else self.group.device_group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of x over the ranks. The argument may be overwritten."""
        if self.size == 1:
            return x
        summed = self.group.all_reduce(x)
        return x if summed is None else summed

    def reduce_scatter(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part, along dim, of the sum of x over the ranks."""
        return x if self.size == 1 else self.group.reduce_scatter(x, dim)

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The ranks' x side by side along dim."""
        return x if self.size == 1 else self.group.all_gather(x, dim)


def current_ranks() -> Ranks:
    """vLLM's tensor-parallel group, or one rank where none is set up."""
    parallel_state = sys.modules.get("vllm.distributed.parallel_state")
    if parallel_state is None:  # an engine would have imported it
        return Ranks()
    try:
        group = parallel_state.get_tp_group()
    except AssertionError:  # vLLM says so where the group is not set up
        return Ranks()
    return Ranks(group) if group.world_size > 1 else Ranks()


def engine_config() -> Any:
    """vLLM's configuration while a model is built, or None."""
    config = sys.modules.get("vllm.config")
    if config is None:
        return None
    try:
        return config.get_current_vllm_config()
    except AssertionError:
        return None


def model_dtype(config: PretrainedConfig) -> torch.dtype:
    """The dtype of weights and cache: the engine's, else the configuration's, else bfloat16."""
    engine = getattr(engine_config(), "model_config", None)
    asked = getattr(engine, "dtype", None)
    if not isinstance(asked, torch.dtype):
        asked = getattr(config, "dtype", None)
    if isinstance(asked, str):
        asked = getattr(torch, asked, None)
    return asked if isinstance(asked, torch.dtype) else torch.bfloat16


def longest_sequence() -> int | None:
    """The longest sequence the engine will ask for, if there is an engine."""
    engine = getattr(engine_config(), "model_config", None)
    longest = getattr(engine, "max_model_len", None)
    return longest if isinstance(longest, int) else None
