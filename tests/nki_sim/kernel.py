"""`nki.jit`, `nki.simulate` and launches: arguments in, results out.

Tensors go in without a copy (a kernel that writes an argument writes the caller's memory) and come
out as new NumPy arrays, or as torch tensors if an argument was one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from tests.nki_sim import machine
from tests.nki_sim.access import unwritten_rows, values
from tests.nki_sim.dtypes import dtype_name, torch_type
from tests.nki_sim.errors import demand, refuse
from tests.nki_sim.objects import NKIObject
from tests.nki_sim.registers import Register
from tests.nki_sim.storage import Region, Storage
from tests.nki_sim.tensor import NkiTensor

launches: list[machine.Launch] = []  # the last one, for tests that ask what ran
CONSTANTS = (bool, int, float, str, Enum, NKIObject, type(None))


class Kernel:
    """A function under `@nki.jit`: `kernel(...)` runs it on one core, `kernel[2](...)` on two."""

    def __init__(self, function: Callable[..., Any], cores: int = 1) -> None:
        self.func = function
        self.cores = cores
        functools.update_wrapper(self, function)

    def __getitem__(self, cores: Any) -> Kernel:
        if isinstance(cores, tuple):
            demand(len(cores) == 1, "launch", f"a grid of {cores}")
            cores = cores[0]
        return Kernel(self.func, int(cores))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if machine.running():  # called by another kernel: inlined
            return self.func(*args, **kwargs)
        torch = sys.modules.get("torch")
        tensors = [a for a in (*args, *kwargs.values()) if torch and isinstance(a, torch.Tensor)]
        bound = [argument(a) for a in args]
        named = {name: argument(a) for name, a in kwargs.items()}
        launch = machine.Launch(self.cores)
        launches[:] = [launch]
        results = launch.run(lambda: self.func(*bound, **named))
        inputs = [a for a in (*bound, *named.values()) if isinstance(a, NkiTensor)]
        return result(results[0], inputs, as_torch=bool(tensors))


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`@nki.jit`, with or without options."""
    if function is None:
        return lambda f: Kernel(f)
    return Kernel(function)


def simulate(kernel: Any) -> Kernel:
    """`nki.simulate(kernel)(...)`. Here a launch is a simulation anyway."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


def argument(value: Any) -> Any:
    """A caller's argument as the kernel sees it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        demand(value.is_contiguous(), "argument", f"a tensor of strides {value.stride()}")
        flat = value.detach().reshape(-1)
        raw = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
        return _tensor(raw, tuple(value.shape), dtype_name(value.dtype))
    if isinstance(value, np.ndarray):
        demand(value.flags.c_contiguous, "argument", f"an array of strides {value.strides}")
        return _tensor(value.reshape(-1).view(np.uint8), value.shape, dtype_name(value.dtype))
    if isinstance(value, tuple):
        return tuple(argument(v) for v in value)
    demand(isinstance(value, CONSTANTS), "argument", f"{type(value).__name__} {value!r}")
    return value


def _tensor(raw: Any, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    return NkiTensor(shape, dtype, Storage.of_bytes(raw, dtype, shape), "argument")


def result(value: Any, inputs: list[NkiTensor], as_torch: bool) -> Any:
    """What a kernel returned, as its caller gets it."""
    if isinstance(value, (list, tuple)):
        return type(value)(result(v, inputs, as_torch) for v in value)
    if value is None or isinstance(value, (bool, int, float, Register)):
        return value
    if not isinstance(value, NkiTensor):
        refuse("output-place", f"the kernel returns {value!r}")
    demand(value.buffer is Region.shared_hbm, "output-place", f"the kernel returns {value}")
    rows = unwritten_rows(value)
    demand(rows is None, "output-unwritten", f"{value}: {rows}")
    array = values(value)
    if not as_torch:
        return array
    torch = sys.modules["torch"]
    raw = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return raw.view(torch_type(value.dtype)).reshape(value.shape)
