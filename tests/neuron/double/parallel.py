"""Parallel state: gloo groups, vLLM's `get_tp_group`, and the plugin's own group getters.

Only tensor parallelism, with the world as its group, and expert parallelism inside it. Component
groups (attention, MLP, embedding, LM head) equal the TP group, their DP groups have one rank.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch.distributed as dist

from tests.neuron.double.collectives import Group

COMPONENTS = ("attention", "mlp", "embedding", "lm_head")


class Parallel:
    """The groups of one process.

    Args:
        ep_degree: expert-parallel degree; 1: no expert-parallel groups exist.
    """

    def __init__(self, ep_degree: int = 1) -> None:
        world = dist.get_world_size()
        if world % ep_degree:
            raise ValueError(f"ep_degree {ep_degree} does not divide {world} ranks")
        self.world = world
        everyone = dist.group.WORLD
        assert everyone is not None
        self.tp = Group(list(range(world)), everyone)
        rank = dist.get_rank()
        self.alone = _make([[r] for r in range(world)], rank)
        self.ep_degree = ep_degree
        self.ep: Group | None = None
        self.ep_tp: Group | None = None
        if ep_degree > 1:
            width = world // ep_degree
            rows = [list(range(i * width, (i + 1) * width)) for i in range(ep_degree)]
            self.ep_tp = _make(rows, rank)
            self.ep = _make([list(column) for column in zip(*rows, strict=True)], rank)


def _make(ranks: list[list[int]], rank: int) -> Group:
    """One group for each list, all made on all ranks; the one that holds `rank`."""
    mine: Group | None = None
    for members in ranks:
        group = dist.new_group(members, backend="gloo")
        if rank in members:
            mine = Group(members, group)
    assert mine is not None
    return mine


def module(parallel: Parallel) -> ModuleType:
    """`vllm_neuron.parallel.neuron_parallel_state` over these groups."""
    made = ModuleType("vllm_neuron.parallel.neuron_parallel_state")
    content: dict[str, Any] = {
        "get_neuron_ep_degree": lambda: parallel.ep_degree,
        "get_neuron_ep_rank": lambda: 0 if parallel.ep is None else parallel.ep.rank_in_group,
        "get_neuron_ep_group": lambda: _initialized(parallel.ep),
        "get_neuron_ep_tp_group": lambda: _initialized(parallel.ep_tp),
        "get_neuron_attention_dp_rank": lambda: 0,
    }
    for name in COMPONENTS:
        content[f"get_neuron_{name}_tp_group"] = lambda: parallel.tp
        content[f"get_neuron_{name}_dp_group"] = lambda: parallel.alone
    made.__dict__.update(content)
    return made


def _initialized(group: Group | None) -> Group:
    assert group is not None, "the expert-parallel group is not initialized: ep_degree is 1"
    return group


def warm_imports() -> None:
    """Import vLLM's modules now, so that forked ranks need not, each for itself."""
    for name in ("vllm.config.vllm", "vllm.distributed.parallel_state"):
        importlib.import_module(name)


@contextmanager
def vllm_groups(parallel: Parallel) -> Iterator[None]:
    """vLLM's own `get_tp_group()` and `get_world_group()` give these groups."""
    import vllm.distributed.parallel_state as vllm_state

    before = vllm_state._TP, vllm_state._WORLD
    there: Any = vllm_state
    there._TP, there._WORLD = parallel.tp, parallel.tp
    try:
        yield
    finally:
        there._TP, there._WORLD = before


@contextmanager
def vllm_config(config: Any) -> Iterator[None]:
    """`get_current_vllm_config()` gives `config`: while a model is built and loaded, not after."""
    import vllm.config.vllm as vllm_config_module

    there: Any = vllm_config_module
    before = there._current_vllm_config
    there._current_vllm_config = config
    try:
        yield
    finally:
        there._current_vllm_config = before
