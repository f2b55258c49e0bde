"""Where an NF call runs: in the vLLM Neuron plugin, or in the torch reference of this package.

The plugin is used if `vllm_neuron.functional` really imports *and* its platform is active. Decided
once, at the first call, and kept for the life of the process. Name holders (empty packages of the
plugin's name) have none of the functions and count as absent. `decide()` also tells why, for
`autoport doctor`.

A new NF function is a new file whose function carries `@nf_function(weights=...)`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ParamSpec, TypeVar

import torch

from neuron_autoport.errors import AutoportError
from neuron_autoport.nf.enums import COMMON, MODULES

P = ParamSpec("P")
R = TypeVar("R")

PLUGIN = "vllm_neuron"
FUNCTIONS = "vllm_neuron.functional"
PLUGIN_ENUMS = COMMON
OUR_ENUMS = "neuron_autoport.nf.enums"
CPU_MODE = "VLLM_NEURON_CPU_MODE"

_offered: list[str] = []
_reference_only: list[bool] = []


@dataclass(frozen=True)
class Decision:
    """Which backend runs NF calls ("vllm_neuron" or "torch"), and why."""

    backend: str
    reason: str


@functools.cache
def decide() -> Decision:
    """Decide the backend, once per process (`decide.cache_clear()` forgets it).

    The platform is asked before the plugin's functions are imported: importing them where no Neuron
    platform is active fails inside the plugin.
    """
    if PLUGIN not in sys.modules and importlib.util.find_spec(PLUGIN) is None:
        return Decision("torch", f"{PLUGIN} is not installed")
    inactive = _platform_inactive()
    if inactive:
        return Decision("torch", inactive)
    try:
        module = importlib.import_module(FUNCTIONS)
        importlib.import_module(PLUGIN_ENUMS)
    except ImportError as error:
        return Decision("torch", f"{FUNCTIONS} cannot be used: {error}")
    for name in set(MODULES.values()):
        with contextlib.suppress(ImportError):  # a call that needs one of its enums says so
            importlib.import_module(name)
    missing = [name for name in _offered if not callable(getattr(module, name, None))]
    if missing:
        return Decision("torch", f"{FUNCTIONS} has no {', '.join(missing)}: not the plugin")
    return Decision("vllm_neuron", f"{FUNCTIONS} is imported and its platform is active")


def _platform_inactive() -> str:
    """Why the plugin's platform is not active; an empty text if it is."""
    mode = os.environ.get(CPU_MODE, "0").strip()
    if mode not in ("", "0", "1"):
        raise AutoportError(
            f"{CPU_MODE} is {mode!r}; the plugin reads it as a number, 0 or 1",
            where="environment",
            next_step=f"export {CPU_MODE}=1",
        )
    if mode == "1":
        return ""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        return f"{CPU_MODE} is not set and vLLM cannot be imported: {error}"
    owners = {base.__module__.partition(".")[0] for base in type(current_platform).__mro__}
    if PLUGIN in owners:
        return ""
    return f"{CPU_MODE} is not set and vLLM's platform is {type(current_platform).__name__}"


def _constant(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that torch.compile runs, not traces: its answer is fixed for the process.

    The imports behind the decision cannot be part of a graph.
    """
    compiler: Any = torch.compiler
    marked: Callable[P, R] = compiler.assume_constant_result(function)
    return marked


@_constant
def backend() -> str:
    """ "vllm_neuron" if NF calls go to the plugin, "torch" if they run in the torch reference."""
    return "torch" if reference_only() else decide().backend


def reference_only() -> bool:
    """Is `reference()` in force? NK functions ask too."""
    return bool(_reference_only)


@contextlib.contextmanager
def reference() -> Iterator[None]:
    """NF and NK calls run in the torch reference, whatever is installed: for proofs, which must not depend
    on the machine. Not for graphs that outlive it."""
    _reference_only.append(True)
    try:
        yield
    finally:
        _reference_only.pop()


def _translate(value: object) -> object:
    """One of our enum members as the plugin's member of the same name; anything else unchanged.

    Looked up in `sys.modules`, where torch.compile can follow.
    """
    if not isinstance(value, Enum) or type(value).__module__ != OUR_ENUMS:
        return value
    name = type(value).__name__
    module = MODULES.get(name, PLUGIN_ENUMS)
    enum = getattr(sys.modules.get(module), name, None)
    member = getattr(enum, value.name, None)
    if member is None:
        raise AutoportError(
            f"the installed plugin has no {name}.{value.name}",
            where=module,
            next_step="pip show vllm-neuron nki",
        )
    found: object = member
    return found


def _refuse_hosted(function: str, name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"NF.{function}: {name} is a {type(value).__name__}; the plugin takes tensors "
            "[in, out] only. Hosted weights are for the torch reference: pass the plain tensor."
        )


def nf_function(*, weights: tuple[str, ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a torch reference an NF function: same signature, sent to the plugin where that is the
    backend.

    Args:
        weights: the parameters that may be hosted weights in the reference and must be tensors in
        the plugin.
    """

    def wrap(reference: Callable[P, R]) -> Callable[P, R]:
        name = reference.__name__
        parameters = tuple(inspect.signature(reference).parameters)
        unknown = set(weights) - set(parameters)
        if unknown:
            raise ValueError(f"{name} has no parameter {sorted(unknown)}")
        _offered.append(name)

        @functools.wraps(reference)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if backend() == "torch":
                return reference(*args, **kwargs)
            given: dict[str, Any] = dict(zip(parameters, args, strict=False))
            given.update(kwargs)
            for weight in weights:
                if weight in given:
                    _refuse_hosted(name, weight, given[weight])
            positional = [_translate(value) for value in args]
            by_name = {key: _translate(value) for key, value in kwargs.items()}
            result: R = getattr(sys.modules[FUNCTIONS], name)(*positional, **by_name)
            return result

        return call

    return wrap
