"""The double as a package tree: `vllm_neuron` and what it stands on, in sys.modules for a while.

    with installed() as double:
        ...            # import vllm_neuron.functional as NF
        double.log     # what was called

torch.distributed must be initialised before (`one_rank()` does it for a single process).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from neuron_autoport.kernels.dispatch import forget as forget_kernels
from neuron_autoport.nf import dispatch
from tests.neuron.double import (
    checkpoint,
    expert_loader,
    functions,
    hop,
    kv_spec,
    neuron_config,
    nn,
    parallel,
    weight_loader,
)
from tests.neuron.double.contract import ENUMS, FUNCTIONS, NL_BFLOAT16, TABLE
from tests.neuron.double.state import State, pop, push, state
from tests.nki_sim.runner import registered

CPU_MODE = "VLLM_NEURON_CPU_MODE"


class Package(ModuleType):
    """A module of the double that counts as a package."""

    def __init__(self, name: str, **content: Any) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__.update(content)


def _public(module: ModuleType, *names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def _can_run_kernel(device: Any = "") -> bool:
    """`can_run_kernel`: in CPU mode kernels are off, unless they are simulated."""
    return state().simulate


def _layers() -> dict[str, dict[str, Any]]:
    """`vllm_neuron.nn` and its modules."""
    modules: dict[str, dict[str, Any]] = {"vllm_neuron.nn": {}}
    for name, row in TABLE["nn"].items():
        if row["module"].startswith("vllm_neuron.nn."):
            modules.setdefault(row["module"], {})[name] = getattr(nn, name)
    modules["vllm_neuron.nn"] = _public(nn, "ColumnParallelLinear", "RowParallelLinear")
    return modules


def _functions() -> dict[str, dict[str, Any]]:
    """`vllm_neuron.functional` and its modules."""
    modules: dict[str, dict[str, Any]] = {"vllm_neuron.functional": {}}
    for name, row in FUNCTIONS.items():
        made = _can_run_kernel if name == "can_run_kernel" else functions.named(name)
        modules.setdefault(row["module"], {})[name] = made
        if row["exported"]:
            modules["vllm_neuron.functional"][name] = made
    for name in TABLE["exported_but_not_read"]:
        modules["vllm_neuron.functional"][name] = functions.unread(name)
    return modules


def contents(groups: parallel.Parallel) -> dict[str, dict[str, Any]]:
    """Module name -> what it holds."""
    modules = _functions() | _layers()
    modules["vllm_neuron.utils.weight_loader"] = {
        name: value
        for source in (weight_loader, expert_loader)
        for name, value in vars(source).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == source.__name__
    }
    modules["vllm_neuron.utils.checkpoints"] = _public(
        checkpoint, "SafetensorsCheckpoint", "CheckpointLoadResult"
    )
    modules["vllm_neuron.model.kv_cache"] = _public(kv_spec, "KVSpec", "LayerSpec")
    modules["vllm_neuron.model.neuron_config"] = _public(
        neuron_config, "NeuronConfig", "OnDeviceSamplingConfig"
    )
    modules["vllm_neuron.parallel.neuron_parallel_state"] = dict(vars(parallel.module(groups)))
    modules["libtorch_neuronx_lite.nki.nki_hop"] = {"wrap_nki": hop.wrap_nki}
    modules["nki.language"] = {"bfloat16": NL_BFLOAT16}
    for name, row in TABLE["enums"].items():
        modules.setdefault(row["module"], {})[name] = ENUMS[name]
    return modules


def build_tree(groups: parallel.Parallel) -> dict[str, Package]:
    """All modules, parents included, each an attribute of its parent."""
    tree: dict[str, Package] = {}
    for name, content in contents(groups).items():
        tree[name] = Package(name)
        tree[name].__dict__.update({k: v for k, v in content.items() if not k.startswith("__")})
    for name in list(tree):
        while "." in name:
            parent, _, leaf = name.rpartition(".")
            tree.setdefault(parent, Package(parent))
            if not hasattr(tree[parent], leaf):
                setattr(tree[parent], leaf, tree[name])
            name = parent
    return tree


@contextmanager
def _in_sys_modules(tree: dict[str, ModuleType]) -> Iterator[None]:
    roots = {name.partition(".")[0] for name in tree}
    before = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in roots}
    for name in before:
        del sys.modules[name]
    sys.modules.update(tree)
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update(before)


@contextmanager
def _cpu_mode() -> Iterator[None]:
    """The plugin is active by its environment variable; NF decides its backend anew."""
    before = os.environ.get(CPU_MODE)
    os.environ[CPU_MODE] = "1"
    dispatch.decide.cache_clear()
    forget_kernels()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CPU_MODE, None)
        else:
            os.environ[CPU_MODE] = before
        dispatch.decide.cache_clear()
        forget_kernels()


@contextmanager
def one_rank() -> Iterator[None]:
    """torch.distributed over gloo with this process alone, unless it is initialised already."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _tree(groups: parallel.Parallel, stack: ExitStack) -> dict[str, ModuleType]:
    """The double's modules; with simulated kernels `nki` is what runs them, the real one or ours."""
    tree: dict[str, ModuleType] = dict(build_tree(groups))
    if state().simulate:
        stack.enter_context(registered())
        ours = {n: m for n, m in tree.items() if n.partition(".")[0] != "nki"}
        tree = ours | {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "nki"}
    return tree


@contextmanager
def installed(settings: State | None = None, ep_degree: int = 1) -> Iterator[State]:
    """The double in place of the plugin; gives its state (log and settings)."""
    with ExitStack() as stack:
        stack.enter_context(one_rank())
        groups = parallel.Parallel(ep_degree)
        push(settings or State())
        stack.callback(pop)
        stack.enter_context(_in_sys_modules(_tree(groups, stack)))
        stack.enter_context(parallel.vllm_groups(groups))
        stack.enter_context(_cpu_mode())
        stack.callback(torch._dynamo.reset)
        yield state()
