"""Reading and writing the values of a tensor: the checks every instruction needs.

A read refuses memory that nothing wrote, an access outside the storage, and a race with the other core.
"""

from __future__ import annotations

import numpy as np

from tests.nki_sim import machine
from tests.nki_sim.dtypes import NUMPY, Array, cast
from tests.nki_sim.errors import demand, refuse
from tests.nki_sim.registers import Register, plain
from tests.nki_sim.storage import Region, Storage
from tests.nki_sim.tensor import NkiTensor
from tests.nki_sim.window import Window

UNWRITTEN = -1  # of `matmul_state`
UNWRITTEN_IS_NAN = "unwritten memory reads as NaN"
allowed: set[str] = set()  # what is not an error for now; see runner.lenient


def read(tensor: NkiTensor, keep: Array | None = None) -> Array:
    """A copy of the values, in the tensor's shape and type.

    Args:
        keep: for gathers that skip: which elements to read; the others come back as they lie
            at the tensor's start.
    """
    at = window(tensor, keep)
    storage = tensor.storage
    strict = UNWRITTEN_IS_NAN not in allowed
    if strict and storage.written is not None and not at.get(storage.written).all():
        refuse("unwritten-read", f"{tensor}: {_unwritten(tensor, at)}")
    _race(tensor, at, writes=False)
    if storage.matmul is not None:
        states = at.get(storage.matmul)
        if (states == Storage.MATMUL).any():
            at.set(storage.matmul, np.where(states, Storage.MATMUL_READ, Storage.NOT_MATMUL))
    return values(tensor, at)


def values(tensor: NkiTensor, at: Window | None = None) -> Array:
    """A copy of the values without any check, for tests and for results."""
    at = at or window(tensor)
    raw = np.ascontiguousarray(at.get(tensor.storage.data)).reshape(-1)
    return raw.view(NUMPY[tensor.dtype]).reshape(tensor.shape).copy()


def write(
    tensor: NkiTensor, new: Array, *, matmul: bool = False, keep: Array | None = None
) -> None:
    """Write `new`, cast to the tensor's type, in row-major order.

    Args:
        keep: for scatters that skip: which elements to write.
    """
    kind = NUMPY[tensor.dtype]
    data = cast(np.asarray(new).reshape(tensor.shape), tensor.dtype)
    at = window(tensor, keep)
    storage = tensor.storage
    _race(tensor, at, writes=True)
    if keep is not None:
        data = data[keep]
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if at.index is not None:
        storage.data[at.index] = raw.reshape(at.index.shape)
    else:
        at.get(storage.data)[...] = raw.reshape(at.shape)
    if storage.written is not None:
        at.set(storage.written, True)
    if storage.matmul is not None:
        at.set(storage.matmul, Storage.MATMUL if matmul else Storage.NOT_MATMUL)
    assert raw.size % kind.itemsize == 0


def window(tensor: NkiTensor, keep: Array | None = None) -> Window:
    """The bytes of a tensor; refuses those outside its storage."""
    size = tensor.itemsize
    total = tensor.storage.data.size // size
    if tensor.indirect is None and keep is None:
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
        inside = tensor.size == 0 or (tensor.offset >= 0 and tensor.offset + reach < total)
        demand(inside, "out-of-bounds", f"{tensor} reaches element {tensor.offset + reach}")
        steps = tuple(s * size for s in tensor.strides)
        return Window(tensor.shape, steps, tensor.offset * size, size)
    places = flat_places(tensor)
    if keep is not None:
        places = places[keep]
    bad = places[(places < 0) | (places >= total)]
    demand(bad.size == 0, "index-range", f"{tensor} has elements {bad[:3]} of {total}")
    return Window(tensor.shape, (), 0, size, places * size)


def flat_places(tensor: NkiTensor) -> Array:
    """The element number in its storage of every element of a gather or scatter."""
    places = np.full(tensor.shape, tensor.offset, dtype=np.int64)
    for axis, (count, step) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
        along = (-1,) + (1,) * (tensor.ndim - axis - 1)
        places += (np.arange(count) * step).reshape(along)
    indirect = tensor.indirect
    if indirect is None:
        return places
    if isinstance(indirect.source, Register):
        return places + plain(indirect.source) * indirect.stride
    held = read(indirect.source)
    demand(held.dtype.kind in "iu", "operand-dtype", f"indices {indirect.source}")
    index = held.reshape(-1).astype(np.int64) * indirect.stride
    if not indirect.per_partition:
        demand(index.size == 1, "operand-shape", f"scalar_offset {indirect.source}")
        return places + index[0]
    count = tensor.shape[0]
    demand(index.size >= count, "operand-shape", f"vector_offset {indirect.source} for {tensor}")
    # The index takes the place of the step along axis 0.
    rows = index[:count] - np.arange(count) * tensor.strides[0]
    return places + rows.reshape((-1,) + (1,) * (tensor.ndim - 1))


def _unwritten(tensor: NkiTensor, at: Window) -> str:
    """Which rows of the tensor hold memory that nothing wrote."""
    assert tensor.storage.written is not None
    flags = at.get(tensor.storage.written).reshape(tensor.shape[0], -1)
    rows = np.flatnonzero(~flags.all(axis=1))
    return f"{len(rows)} of {tensor.shape[0]} rows are not written, the first is {rows[0]}"


def unwritten_rows(tensor: NkiTensor) -> str | None:
    """What of a tensor nothing wrote, or None if all of it was written."""
    at = window(tensor)
    flags = tensor.storage.written
    return None if flags is None or at.get(flags).all() else _unwritten(tensor, at)


def _race(tensor: NkiTensor, at: Window, writes: bool) -> None:
    core = machine.core()
    if len(core.launch.cores) > 1 and tensor.buffer is Region.shared_hbm:
        others = [n for n in range(len(core.launch.cores)) if n != core.number]
        tensor.storage.note(core.number, others, at, writes, repr(tensor))


def matmul_state(tensor: NkiTensor) -> set[int]:
    """What the last instructions on a PSUM tile were: states of `Storage`, or UNWRITTEN."""
    at = window(tensor)
    assert tensor.storage.matmul is not None and tensor.storage.written is not None
    states = np.where(
        at.get(tensor.storage.written), at.get(tensor.storage.matmul).astype(np.int8), UNWRITTEN
    )
    return {int(s) for s in np.unique(states)}
