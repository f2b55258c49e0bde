"""How a broken kernel is written: it takes `bad`, and is a right kernel without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.nki_sim.namespace import nisa, nki, nl
from tests.nki_sim.single import normal

ROWS, WIDTH = 200, 64


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        rule: the rule of `SimError` that names it.
        kernel: takes x [200, 64] float32 in HBM and `bad`.
        lnc: cores it runs on.
    """

    rule: str
    kernel: Any
    lnc: int

    def run(self, bad: bool) -> Any:
        return nki.simulate(self.kernel[self.lnc])(normal(ROWS, WIDTH), bad=bad)


CASES: dict[str, Case] = {}


def broken(rule: str, lnc: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a kernel in `CASES`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = Case(rule, nki.jit(function), lnc)
        return function

    return enter


def sb(*shape: int, dtype: Any = nl.float32) -> Any:
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def ps(*shape: int, dtype: Any = nl.float32) -> Any:
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def hbm(*shape: int, dtype: Any = nl.float32) -> Any:
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)


def rows(x: Any, count: int = 128, width: int = WIDTH, dtype: Any = nl.float32) -> Any:
    """The first rows of x in SBUF."""
    tile = sb(count, width, dtype=dtype)
    nisa.dma_copy(dst=tile, src=x[0:count, 0:width])
    return tile


def filled(*shape: int, value: Any = 1.0, dtype: Any = nl.float32) -> Any:
    """An SBUF tile of one value."""
    tile = sb(*shape, dtype=dtype)
    nisa.memset(dst=tile, value=value)
    return tile


def stored(tile: Any) -> Any:
    """A tile as a result."""
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


FLOAT_MIN = float(np.finfo(np.float32).min)
