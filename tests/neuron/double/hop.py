"""`wrap_nki` of libtorch_neuronx_lite: how torch calls an NKI kernel, without a device.

`wrap_nki(kernel)[lnc](name=tensor, ...)` runs the kernel itself in the simulator of tests/nki_sim, if the
state says so. Else a kernel without a registered stand-in is refused: no result is invented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.neuron.double.args import ContractError
from tests.neuron.double.log import Call
from tests.neuron.double.state import state
from tests.nki_sim.wrap import wrap_nki as wrap_simulated

_stand_ins: dict[str, Callable[..., Any]] = {}


def register_stand_in(kernel: str, function: Callable[..., Any]) -> None:
    """Run `function` in place of the NKI kernel of this name, with the same keyword arguments."""
    _stand_ins[kernel] = function


def _stand_in(kernel: str) -> Callable[..., Any]:
    if kernel not in _stand_ins:
        raise ContractError(f"{kernel}: no stand-in for this kernel")
    return _stand_ins[kernel]


class WrappedKernel:
    """A kernel ready to be indexed with its logical core count and called with keywords."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.name = str(getattr(kernel, "__name__", type(kernel).__name__))

    def __getitem__(self, lnc: int) -> Callable[..., Any]:
        if lnc not in (1, 2):
            raise ContractError(f"{self.name}[{lnc}]: the logical core count is 1 or 2")

        def call(*args: Any, **given: Any) -> Any:
            if args:
                raise ContractError(f"{self.name}: kernels are called with keywords only")
            run = wrap_simulated(self.kernel)[lnc] if state().simulate else _stand_in(self.name)
            log = state().log
            shapes = {k: tuple(v.shape) for k, v in given.items() if hasattr(v, "shape")}
            constants = {k: v for k, v in given.items() if k not in shapes}
            log.calls.append(Call(self.name, log.step, "kernel", shapes, {}, constants))
            return run(**given)

        return call


def wrap_nki(kernel: Any) -> WrappedKernel:
    """The kernel, wrapped."""
    return WrappedKernel(kernel)
