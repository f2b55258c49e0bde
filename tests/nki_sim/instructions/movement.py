"""Data movement: DMA between memories, and transposes on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nki_sim.access import flat_places, read, write
from tests.nki_sim.dtypes import F32, Array
from tests.nki_sim.enums import oob_mode as modes
from tests.nki_sim.errors import demand
from tests.nki_sim.hardware import PARTITIONS
from tests.nki_sim.operands import SBUF, instruction, tile
from tests.nki_sim.operators import operator_of
from tests.nki_sim.storage import Region
from tests.nki_sim.tensor import NkiTensor, as_tensor

MOST_SOURCES = 16
TURNS: dict[int, list[tuple[int, ...]]] = {2: [(1, 0)], 3: [(2, 1, 0)], 4: [(3, 1, 2, 0)]}


def moved(value: Any, role: str) -> NkiTensor:
    """A tensor that DMA reaches: any but PSUM."""
    tensor = as_tensor(value, role)
    demand(tensor.buffer is not Region.psum, "operand-place", f"DMA with {role} {tensor}")
    if tensor.on_chip:
        demand(tensor.shape[0] <= PARTITIONS, "partition-limit", f"{role} {tensor}")
    return tensor


@instruction
def dma_copy(
    dst: Any,
    src: Any,
    priority: Any = None,
    oob_mode: Any = modes.error,
    dge_mode: Any = None,
    engine: Any = None,
    name: Any = None,
) -> None:
    """dst = src, in row-major order, cast. With `oob_mode.skip`, bad rows of a gather stay away."""
    out, data = moved(dst, "dst"), moved(src, "src")
    demand(out.size == data.size, "dma-shape", f"dma_copy of {data} to {out}")
    indexed = out if out.indirect is not None else data
    if oob_mode is not modes.skip or indexed.indirect is None:
        write(out, read(data))
        return
    places = flat_places(indexed)
    total = indexed.storage.data.size // indexed.itemsize
    keep: Array = (places >= 0) & (places < total)
    if indexed is data:
        write(out, _gathered(data, keep).reshape(out.shape), keep=keep.reshape(out.shape))
    else:
        write(out, read(data), keep=keep)


def _gathered(data: NkiTensor, keep: Array) -> Array:
    """The elements of a gather that exist, in the gather's shape; the rest is left at 0."""
    base = NkiTensor(
        (data.storage.data.size // data.itemsize,), data.dtype, data.storage, data.name
    )
    everything = read(base)
    held = np.zeros(data.shape, dtype=everything.dtype)
    held[keep] = everything[flat_places(data)[keep]]
    return held


@instruction
def dma_transpose(
    dst: Any,
    src: Any,
    axes: Any = None,
    priority: Any = None,
    dge_mode: Any = None,
    oob_mode: Any = None,
    name: Any = None,
) -> None:
    """dst = src turned; two-byte types only, and dst has exactly the turned shape."""
    out, data = tile(dst, "dst", SBUF), moved(src, "src")
    legal = TURNS.get(data.ndim, [])
    turn = tuple(axes) if axes is not None else (legal[0] if legal else ())
    demand(turn in legal, "transpose-shape", f"dma_transpose of {data} by {turn}")
    types = data.itemsize == 2 and out.dtype == data.dtype
    demand(types, "operand-dtype", f"dma_transpose of {data} into {out}")
    shape = tuple(data.shape[a] for a in turn)
    demand(out.shape == shape, "transpose-shape", f"dma_transpose of {data} into {out}")
    demand(data.shape[-1] <= PARTITIONS, "transpose-shape", f"dma_transpose of {data}")
    write(out, read(data).transpose(turn))


@instruction
def dma_compute(
    dst: Any,
    srcs: Any,
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: Any = None,
    name: Any = None,
) -> None:
    """dst = the sum of up to 16 sources, in float32, while they are copied."""
    adds = operator_of(reduce_op, "reduce", "dma_compute").name == "add"
    unscaled = scales is None or all(float(s) == 1.0 for s in scales)
    demand(adds and unscaled, "operator", f"dma_compute with {reduce_op!r} and scales {scales}")
    demand(0 < len(srcs) <= MOST_SOURCES, "operand-shape", f"dma_compute of {len(srcs)} sources")
    out = moved(dst, "dst")
    total = np.zeros(out.shape, F32)
    for source in srcs:
        tensor = moved(source, "source")
        demand(tensor.size == out.size, "dma-shape", f"dma_compute of {tensor} into {out}")
        total = total + read(tensor).astype(F32).reshape(out.shape)
    write(out, total)
