"""`nki.isa` of the simulator: the enumerations and every instruction there is."""

from __future__ import annotations

from typing import Any

from tests.nki_sim import enums
from tests.nki_sim.errors import refuse
from tests.nki_sim.instructions import (
    cores,
    elementwise,
    matmul,
    movement,
    patterns,
    reductions,
)
from tests.nki_sim.operands import INSTRUCTIONS

_SOURCES = (cores, elementwise, matmul, movement, patterns, reductions)
# Instructions that Trainium 3 was the first to have.
NEWER = {"activate2", "exponential", "nc_matmul_mx", "quantize_mx"}
ENUMS = {n: v for n, v in vars(enums).items() if not n.startswith("_") and n[0].islower()}


def get_nc_version() -> enums.nc_version:
    """The core the simulator stands for: Trainium 2's."""
    return enums.nc_version.gen3


def __getattr__(name: str) -> Any:
    if name in INSTRUCTIONS:
        return INSTRUCTIONS[name]
    if name in ENUMS:
        return ENUMS[name]
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        refuse("newer-core" if name in NEWER else "not-simulated", f"nisa.{name}")

    return missing
