"""One launch: the cores of it, their on-chip memory, and how they wait for each other.

The two cores of LNC 2 are two threads of which one runs at a time: core 0 until it waits or ends, then
core 1, and so on. So a launch does the same every time, and a race is found by its records
(storage.py), not by luck.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.nki_sim.dtypes import Array, dtype_name
from tests.nki_sim.errors import SimError, demand, refuse
from tests.nki_sim.hardware import (
    PARTITIONS,
    PSUM_PARTITION_BYTES,
    SBUF_PARTITION_BYTES,
    SBUF_USABLE_BYTES,
)
from tests.nki_sim.storage import Region, Storage
from tests.nki_sim.tensor import NkiTensor

LIMITS = {Region.sbuf: SBUF_USABLE_BYTES, Region.psum: PSUM_PARTITION_BYTES}
SIZES = {Region.sbuf: SBUF_PARTITION_BYTES, Region.psum: PSUM_PARTITION_BYTES}
RULES = {Region.sbuf: "sbuf-budget", Region.psum: "psum-budget"}


class Sums:
    """An engine's reduction registers: one float32 per partition, unset at first."""

    def __init__(self) -> None:
        self.values = np.zeros((PARTITIONS, 1), np.float32)
        self.valid = np.zeros(PARTITIONS, dtype=bool)

    def reset(self, start: Any) -> None:
        """All registers to a number."""
        self.values[:] = start
        self.valid[:] = True

    def load(self, start: Array) -> None:
        """The first registers to the values of a [P, 1] array."""
        self.values[: len(start)] = start
        self.valid[: len(start)] = True

    def held(self, count: int) -> Array:
        """The first `count` registers, as a view."""
        demand(self.valid[:count].all(), "sums-unset", f"the sums of {count} partitions")
        return self.values[:count]


class Core:
    """What one physical core has for itself.

    Attributes:
        live, peak: bytes per partition in use, and the most there were, by region.
        instructions: how often each instruction was issued.
        scalar_sums, vector_sums: the registers in which the two engines combine rows.
    """

    def __init__(self, launch: Launch, number: int) -> None:
        self.launch = launch
        self.number = number
        self.live = {Region.sbuf: 0, Region.psum: 0}
        self.peak = dict(self.live)
        self.instructions: Counter[str] = Counter()
        self.scalar_sums = Sums()
        self.vector_sums = Sums()
        self.shared_count = 0
        self.barriers = 0
        self.messages = 0

    def take(self, region: Region, partition_bytes: int) -> None:
        """Count a new tile."""
        used = self.live[region] + partition_bytes
        if used > LIMITS[region]:
            refuse(
                RULES[region],
                f"a tile of {partition_bytes} bytes per partition beside {self.live[region]} live "
                f"ones: {used} of {LIMITS[region]} in {region.value}",
            )
        self.live[region] = used
        self.peak[region] = max(self.peak[region], used)

    def give(self, region: Region, partition_bytes: int) -> None:
        """A tile is gone."""
        self.live[region] -= partition_bytes


class Launch:
    """A kernel running on one or two cores."""

    def __init__(self, count: int) -> None:
        demand(count in (1, 2), "launch", f"{count} cores")
        self.cores = [Core(self, n) for n in range(count)]
        self.shared: list[NkiTensor] = []
        self.mail: dict[tuple[int, int, int], Array] = {}
        self.error: BaseException | None = None
        self._turn = 0
        self._done: set[int] = set()
        self._waits: dict[int, tuple[Callable[[], bool], str]] = {}
        self._changed = threading.Condition()

    def run(self, program: Callable[[], Any]) -> list[Any]:
        """Run `program` on every core; returns what each core's returned."""
        results: list[Any] = [None] * len(self.cores)
        if len(self.cores) == 1:
            results[0] = self._on_core(0, program)
            return results
        threads = [
            threading.Thread(target=self._threaded, args=(n, program, results), daemon=True)
            for n in range(len(self.cores))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error
        return results

    def _on_core(self, number: int, program: Callable[[], Any]) -> Any:
        before = getattr(_here, "core", None)
        _here.core = self.cores[number]
        try:
            return program()
        finally:
            _here.core = before

    def _threaded(self, number: int, program: Callable[[], Any], results: list[Any]) -> None:
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._turn == number or self.error is not None)
            if self.error is None:
                results[number] = self._on_core(number, program)
        except BaseException as error:  # of whatever kind: the launching thread raises it
            with self._changed:
                self.error = self.error or error
                self._changed.notify_all()
        else:
            with self._changed:
                self._done.add(number)
                self._next()

    def wait_until(self, number: int, ready: Callable[[], bool], why: str) -> None:
        """Let the other core run until `ready` holds."""
        with self._changed:
            self._waits[number] = (ready, why)
            self._next()
            self._changed.wait_for(lambda: self._turn == number or self.error is not None)
            if self.error is not None:
                raise SimError("core-deadlock", "the other core ended with an error")
            del self._waits[number]

    def _next(self) -> None:
        """Give the turn to a core that can go on."""
        for core in self.cores:
            wait = self._waits.get(core.number)
            if core.number not in self._done and (wait is None or wait[0]()):
                self._turn = core.number
                self._changed.notify_all()
                return
        if len(self._done) < len(self.cores):
            whys = ", ".join(f"core {n} waits for {why}" for n, (_, why) in self._waits.items())
            ended = "".join(f"; core {n} has ended" for n in sorted(self._done))
            self.error = SimError("core-deadlock", whys + ended)
            self._changed.notify_all()


_here = threading.local()


def core() -> Core:
    """The core whose program is running."""
    found: Core | None = getattr(_here, "core", None)
    if found is None:
        refuse("launch", "an instruction outside of a kernel")
    return found


def running() -> bool:
    return getattr(_here, "core", None) is not None


def allocate(
    shape: Any, dtype: Any, region: Region, name: str, address: tuple[int, int] | None = None
) -> NkiTensor:
    """Uninitialised storage; shared HBM is one tensor for both cores, matched by the order of calls.

    A tile with an address of its own must end within its memory. It is not counted with the others:
    kernels that place tiles themselves let them overlap in time, which is not followed here.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    kind = dtype_name(dtype)
    here = core()
    if region.on_chip:
        demand(len(sizes) >= 2, "on-chip-rank", f"shape {sizes} in {region.value}")
        demand(sizes[0] <= PARTITIONS, "partition-limit", f"shape {sizes} in {region.value}")
    if region is not Region.shared_hbm or len(here.launch.cores) == 1:
        storage = Storage(sizes, kind, region)
        if region.on_chip and address is None:
            storage.charge(here)
        elif region.on_chip and address is not None:
            end = address[1] + storage.partition_bytes
            demand(end <= SIZES[region], RULES[region], f"a tile up to byte {end} of a partition")
        return NkiTensor(sizes, kind, storage, name)
    at = here.shared_count
    here.shared_count += 1
    if at == len(here.launch.shared):
        here.launch.shared.append(NkiTensor(sizes, kind, Storage(sizes, kind, region), name))
    found = here.launch.shared[at]
    demand(
        (found.shape, found.dtype) == (sizes, kind),
        "core-divergence",
        f"shared tensor {at} is {found} on one core and {list(sizes)} {kind} on the other",
    )
    return found


def barrier(tensor: NkiTensor) -> None:
    """Wait until both cores are here; what they did to `tensor` before is then visible to both."""
    here = core()
    cores = here.launch.cores
    here.barriers += 1
    count = here.barriers
    if len(cores) > 1:
        here.launch.wait_until(
            here.number, lambda: all(c.barriers >= count for c in cores), f"barrier {count}"
        )
    tensor.storage.passed_barrier(here.number)


def exchange(data: Array, to: int, source: int) -> Array:
    """Send `data` to core `to` and take what core `source` sends in the same exchange."""
    here = core()
    mail, number = here.launch.mail, here.messages
    here.messages += 1
    mail[number, here.number, to] = data
    key = (number, source, here.number)
    if key not in mail:
        here.launch.wait_until(here.number, lambda: key in mail, f"data of core {source}")
    return mail[key]
