"""Running one instruction on tiles: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tests.nki_sim.namespace import nisa, nki, nl

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = np.ndarray[Any, Any]
Tiles = dict[str, Any]


def issue(
    action: Callable[[Tiles], Any],
    out: tuple[tuple[int, ...], Any] | Mapping[str, tuple[tuple[int, ...], Any]],
    psum: tuple[str, ...] = (),
    lnc: int = 1,
    **inputs: Array,
) -> Any:
    """What `action` leaves in its tiles.

    Args:
        action: issues instructions on the tiles it gets by name: the inputs', and the outputs', which
            are unwritten (named `dst` if there is only one).
        out: shape and type of the outputs; the results come back under the same names.
        psum: names of tiles that lie in PSUM instead of SBUF.
        inputs: their values.

    Returns:
        One array, or a dictionary of them if `out` is one.
    """
    single = not isinstance(out, Mapping)
    outputs: dict[str, Any] = {"dst": out} if single else dict(out)  # type: ignore[arg-type]

    def place(name: str) -> Any:
        return nl.psum if name in psum else nl.sbuf

    @nki.jit
    def kernel(*arrays: Any) -> Any:
        tiles = {}
        for name, array in zip(inputs, arrays, strict=True):
            tiles[name] = nl.ndarray(array.shape, dtype=array.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tiles[name], src=array)
            if name in psum:
                moved = nl.ndarray(array.shape, dtype=array.dtype, buffer=nl.psum)
                nisa.tensor_copy(dst=moved, src=tiles[name])
                tiles[name] = moved
        for name, (shape, dtype) in outputs.items():
            tiles[name] = nl.ndarray(shape, dtype=_name(dtype), buffer=place(name))
        action(tiles)
        results = []
        for name, (shape, dtype) in outputs.items():
            source = tiles[name]
            if name in psum:
                source = nl.ndarray(shape, dtype=_name(dtype), buffer=nl.sbuf)
                nisa.tensor_copy(dst=source, src=tiles[name])
            results.append(nl.ndarray(shape, dtype=_name(dtype), buffer=nl.shared_hbm))
            nisa.dma_copy(dst=results[-1], src=source)
        return tuple(results)

    found = nki.simulate(kernel[lnc])(*inputs.values())
    return found[0] if single else dict(zip(outputs, found, strict=True))


def _name(dtype: Any) -> Any:
    kind = np.dtype(dtype)
    return getattr(nl, kind.name)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32, scale: float = 1.0) -> Array:
    """Standard normal numbers, the same for the same arguments."""
    values: Array = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(dtype)


def integers(*shape: int, low: int, high: int, dtype: Any, seed: int = 0) -> Array:
    """Whole numbers from low to high - 1."""
    found: Array = np.random.default_rng(seed).integers(low, high, shape).astype(dtype)
    return found


def close(got: Array, want: Array, ulps: float = 2.0) -> None:
    """`got` is `want` within some units in the last place of its type, at `want`'s magnitude.

    At and below one the unit is that of one: sums of numbers around one cancel.
    """
    assert got.shape == want.shape, (got.shape, want.shape)
    unit = float(ml_dtypes.finfo(got.dtype).eps)
    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    bound = ulps * unit * np.maximum(np.abs(want), 1.0)
    bad = ~((error <= bound) | (got.astype(np.float64) == want))
    assert not bad.any(), f"{bad.sum()} off, worst {np.nanmax(error)} where {want[bad][:3]}"
