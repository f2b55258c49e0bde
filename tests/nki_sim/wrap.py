"""A double of the plugin's `wrap_nki`: kernels called with torch tensors, by keyword.

    call = wrap_nki(kernel)
    out = call[2](x=x, eps=1e-6)

Constants must be hashable, as they are part of the compiled kernel's key.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.nki_sim.errors import demand
from tests.nki_sim.runner import run


class WrappedKernel:
    """What `wrap_nki` returns: indexed with the number of cores, then called by keyword."""

    def __init__(self, kernel: Any, lnc: int | None = None) -> None:
        self.kernel = kernel
        self.lnc = lnc

    def __getitem__(self, lnc: int) -> WrappedKernel:
        return WrappedKernel(self.kernel, lnc)

    def __call__(self, **kwargs: Any) -> Any:
        demand(self.lnc is not None, "launch", "a wrapped kernel called without [cores]")
        for name, value in kwargs.items():
            if not isinstance(value, torch.Tensor):
                try:
                    hash(value)
                except TypeError:
                    demand(False, "argument", f"{name}={value!r} is not hashable")
        return run(self.kernel, lnc=self.lnc or 1, **kwargs)


def wrap_nki(kernel: Any) -> WrappedKernel:
    return WrappedKernel(kernel)
