"""The two cores of LNC 2, and registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.nki_sim import machine
from tests.nki_sim.access import read, write
from tests.nki_sim.errors import demand
from tests.nki_sim.operands import SBUF, instruction, tile
from tests.nki_sim.registers import Register, plain
from tests.nki_sim.storage import Region
from tests.nki_sim.tensor import as_tensor


@instruction
def core_barrier(data: Any, cores: Any, engine: Any = None, name: Any = None) -> None:
    """Wait for the other core; what both did to `data` in shared HBM is then done."""
    tensor = as_tensor(data, "data")
    shared = tensor.buffer is Region.shared_hbm
    demand(shared, "operand-place", f"core_barrier on {tensor}")
    demand(tuple(cores) == (0, 1), "launch", f"core_barrier of cores {cores}")
    demand(_two_cores(), "launch", "core_barrier on a single core")
    machine.barrier(tensor)


def _two_cores() -> bool:
    return len(machine.core().launch.cores) == 2


@instruction
def sendrecv(
    src: Any,
    dst: Any,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = None,
    name: Any = None,
) -> None:
    """dst = the other core's src, exchanged between the two SBUFs."""
    out, data = tile(dst, "dst", SBUF), tile(src, "src", SBUF)
    same = (out.shape, out.dtype) == (data.shape, data.dtype)
    demand(same, "dma-shape", f"sendrecv of {data} into {out}")
    demand(_two_cores(), "launch", "sendrecv on a single core")
    write(out, machine.exchange(read(data), send_to_rank, recv_from_rank))


@instruction
def register_alloc(x: Any = None) -> Register:
    """A register, with a value if one is given."""
    return Register(None if x is None else plain(x))


@instruction
def register_move(dst: Register, src: Any) -> None:
    dst.value = plain(src)


@instruction
def register_load(dst: Register, src: Any) -> None:
    tensor = as_tensor(src, "src")
    demand(tensor.size == 1, "operand-shape", f"register_load of {tensor}")
    dst.value = int(read(tensor).reshape(-1)[0])


@instruction
def register_store(dst: Any, src: Register) -> None:
    tensor = as_tensor(dst, "dst")
    write(tensor, np.full(tensor.shape, plain(src), dtype=np.int64))
