"""Settings of the installed double, read by every function of it.

`semantics`: the plugin's torch formula ("torch", what runs without a device) and its kernel differ
in documented corners, such as a slot of -1. Both can be played.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from tests.neuron.double.log import CallLog

Semantics = Literal["torch", "kernel"]


@dataclass
class State:
    """The double's log and settings.

    compute: dtype of the formulas, float64 unless a model is too big for it.
    model_dtype: if set, floating tensors of a call that should be in it must be.
    simulate: NKI kernels are on, as on a device, and run in the simulator of tests/nki_sim.
    """

    log: CallLog = field(default_factory=CallLog)
    semantics: Semantics = "torch"
    compute: torch.dtype = torch.float64
    model_dtype: torch.dtype | None = None
    simulate: bool = False


_active: list[State] = []


def state() -> State:
    """The state of the installed double.

    Raises:
        RuntimeError: no double is installed.
    """
    if not _active:
        raise RuntimeError("the double of the plugin is not installed")
    return _active[-1]


def push(new: State) -> None:
    """Make `new` the active state."""
    _active.append(new)


def pop() -> None:
    """Go back to the state before."""
    _active.pop()
