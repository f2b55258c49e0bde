"""Shared by the kernel tests: NK functions run in their NKI kernels, in simulation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from neuron_autoport.kernels.dispatch import dense
from neuron_autoport.kernels.limits import KERNELS
from tests.nki_sim.wrap import wrap_nki

OnDevice = Callable[..., Any]


@pytest.fixture(scope="module")
def on_device(nki_simulator: bool) -> OnDevice:
    """on_device(name, *args, lnc=1, **kwargs): NK.name through its kernel, on `lnc` cores.

    The kernel's module is the one the package uses on a device, unmodified.
    """

    def call(name: str, *args: Any, lnc: int = 1, **kwargs: Any) -> Any:
        module = importlib.import_module(KERNELS[name].module)
        return module.launch(dense(wrap_nki(module.KERNEL)[lnc]), *args, **kwargs)

    return call
