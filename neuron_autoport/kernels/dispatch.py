"""Where an NK call runs: in our NKI kernel on Neuron, or in the torch reference.

As with NF, the plugin decides: where it is installed and its platform is active, and its own gate lets
kernels run for the tensor at hand, the kernel is called through the plugin's `wrap_nki`. Everywhere else,
and outside the kernel's limits, the torch reference runs. Nothing here imports `nki` before that.

An NK function is a torch reference that carries `@nk_function(...)`, and a module with its NKI source that
has `KERNEL` (the `nki.jit` function) and `launch(kernel, ...)` with the reference's parameters.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from neuron_autoport.errors import AutoportError
from neuron_autoport.kernels.limits import KERNELS, Kernel, Limit
from neuron_autoport.nf.dispatch import Decision, reference_only
from neuron_autoport.nf.dispatch import decide as decide_nf

P = ParamSpec("P")
R = TypeVar("R")

GATE = "vllm_neuron.utils.neuron_utils"
WRAPPER = "libtorch_neuronx_lite.nki.nki_hop"
CORES = "NEURON_LOGICAL_NC_CONFIG"

logger = logging.getLogger(__name__)

# A function that torch.compile runs, not traces: imports and messages cannot be part of a graph.
_compiler: Any = torch.compiler
constant = _compiler.assume_constant_result

# Every NK function by its name, our own and those of other packages.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
_launchers: dict[str, Callable[..., Any]] = {}
_wrapped: dict[str, Any] = {}


@functools.cache
def decide() -> Decision:
    """Decide whether NK calls may use NKI kernels ("nki") or not ("torch"), once per process.

    `nki` itself is no evidence: the package index has an empty holder of that name, so
    `nki.language` is asked for.
    """
    plugin = decide_nf()
    if plugin.backend == "torch":
        return plugin
    for name in ("nki.language", WRAPPER, GATE):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return Decision("torch", f"{name} cannot be used: {error}")
    return Decision("nki", "the plugin's platform is active and nki.language is imported")


@constant
def backend() -> str:
    """ "nki" if NK calls may go to NKI kernels, "torch" if they run in the torch reference."""
    return "torch" if reference_only() else decide().backend


@functools.cache
def cores() -> int:
    """Physical cores per logical core, the grid of every launch: 1 or 2, as the runtime is set.

    Raises:
        AutoportError: the runtime's variable says neither.
    """
    text = os.environ.get(CORES, "2").strip()
    if text not in ("1", "2"):
        raise AutoportError(
            f"{CORES} is {text!r}; a logical core has 1 or 2 physical cores",
            where="environment",
            next_step=f"export {CORES}=2",
        )
    return int(text)


def dense(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, given contiguous tensors only: an access pattern in it knows shapes, not strides."""

    def call(**given: Any) -> Any:
        return kernel(
            **{n: v.contiguous() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        )

    return call


@constant
def _load(name: str) -> bool:
    """Import and wrap the kernel of NK.`name`, once; never inside a graph."""
    if name not in _launchers:
        module = importlib.import_module(KERNELS[name].module)
        _wrapped[name] = dense(sys.modules[WRAPPER].wrap_nki(module.KERNEL)[cores()])
        _launchers[name] = module.launch
    return True


@constant
def _outside(name: str, why: str) -> bool:
    """Say once that a call runs in torch although kernels are on."""
    _warn(f"NK.{name} runs in torch, not in its kernel: {why}")
    return True


@functools.cache
def _warn(text: str) -> None:
    logger.warning(text)


def forget() -> None:
    """Forget every decision and every loaded kernel (for tests)."""
    decide.cache_clear()
    cores.cache_clear()
    _warn.cache_clear()
    _launchers.clear()
    _wrapped.clear()


def nk_function(
    *,
    summary: str,
    equation: str,
    phases: tuple[str, ...],
    limits: tuple[Limit, ...],
    module: str,
    provider: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a torch reference an NK function: same signature, sent to its NKI kernel where that can run.

    Args:
        summary, equation, phases, limits, module, provider: see `Kernel`; provider None: the
            package the reference is in. The reference's first parameter is the tensor that the
            plugin's gate is asked about.

    Raises:
        ValueError: a limit reads a parameter the function does not have, or the name is taken.
    """

    def wrap(reference: Callable[P, R]) -> Callable[P, R]:
        name = reference.__name__
        signature = inspect.signature(reference).parameters
        parameters = tuple(signature)
        defaults = {n: p.default for n, p in signature.items() if p.default is not p.empty}
        for limit in limits:
            unknown = sorted(limit.parameters() - set(parameters))
            if unknown:
                raise ValueError(f"limit `{limit}`: NK.{name} has no parameter {unknown[0]}")
        if name in KERNELS and KERNELS[name].module != module:
            raise ValueError(f"NK has a function {name} already, with {KERNELS[name].module}")
        owner = provider or reference.__module__.partition(".")[0]
        kernel = Kernel(name, owner, summary, equation, phases, limits, module)
        KERNELS[name] = kernel

        @functools.wraps(reference)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if backend() == "torch":
                return reference(*args, **kwargs)
            given: dict[str, Any] = {**defaults, **dict(zip(parameters, args, strict=False))}
            given.update(kwargs)
            if not sys.modules[GATE].can_run_kernel(given[parameters[0]]):
                return reference(*args, **kwargs)
            outside = kernel.broken(given)
            if outside:
                _outside(name, str(outside[0]))
                return reference(*args, **kwargs)
            _load(name)
            result: R = _launchers[name](_wrapped[name], *args, **kwargs)
            return result

        FUNCTIONS[name] = call
        return call

    return wrap


def reference_of(function: Callable[P, R]) -> Callable[P, R]:
    """The torch reference of an NK function, wherever the function itself would run."""
    found: Callable[P, R] = inspect.unwrap(function)
    return found
