"""The kernel for packed weights: compiled once for a kind of CPU, checked, and kept in the cache.

A file is kept under the digest of what it was made from, so that another source, torch or compiler makes another one,
and under its own: one that was cut short or changed since is not run, but made anew.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.cpp_extension import include_paths, library_paths

from neuron_autoport.cache import cache_folder

SETTING = "AUTOPORT_PACKED_WEIGHTS"
_SOURCE = Path(__file__).with_name("linear.cpp")  # includes what lies beside it
DEPTH = 2048  # inputs of a piece, see the source; an activation is made of sums of one piece only
_MEMORY = "_neuron_autoport_memory"
_LIBRARY = torch.library.Library("neuron_autoport", "FRAGMENT")
NO_ACT, SILU, GELU_TANH = range(3)  # of `Kernel.run_halves`, as in the source
_ACTIVATIONS: Mapping[int, Callable[[Tensor], Tensor]] = {
    SILU: F.silu,
    GELU_TANH: functools.partial(F.gelu, approximate="tanh"),
}
# Bits of a float32 that are dropped, so that the others need 4, 3 and 2 bytes.
_DROPPED = (0, 6, 16)
# (outputs, inputs, rows): whole panels and parts of one, several pieces, few rows and many, one of each.
_CHECKED = ((256, 64, 1), (96, 65, 9), (70, 4100, 20), (33, 3, 200), (1, 1, 1))


class NoKernel(Exception):
    """There is no such kernel here: why."""


@dataclass(frozen=True)
class Level:
    """A kind of CPU. lanes: floats of a vector register. rows: whose sums with one panel fit into registers."""

    architecture: str
    features: tuple[str, ...]
    lanes: int
    rows: int

    @property
    def panel(self) -> int:
        """Outputs of one panel of a packed weight."""
        return 2 * self.lanes


_AVX2 = ("avx2", "fma3", "bmi2", "f16c")
LEVELS = (
    Level("x86-64-v4", (*_AVX2, "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl"), 16, 12),
    Level("x86-64-v3", _AVX2, 8, 6),
)


@dataclass(frozen=True)
class Kernel:
    """The kernel of one level, ready to be called."""

    level: Level
    run: Callable[[Tensor, Tensor, int, Tensor | None], Tensor]
    run_halves: Callable[[Tensor, Tensor, int, Tensor | None, int], Tensor]
    packing: Callable[[Tensor, bool], tuple[Tensor, Tensor]]

    def pack(self, weight: Tensor) -> Tensor:
        """[out, in] float32 -> the handle of the packed weight, for `run`."""
        return self._packed(weight, halves=False)

    def pack_halves(self, weight: Tensor) -> Tensor:
        """[2 n, in] float32 -> the handle of the weight packed as halves, for `run_halves`."""
        return self._packed(weight, halves=True)

    def _packed(self, weight: Tensor, *, halves: bool) -> Tensor:
        memory, handle = self.packing(weight.detach(), halves)
        setattr(handle, _MEMORY, memory)  # lives as long as its handle
        return handle


def bytes_of(handle: Tensor) -> int:
    """What a packed weight takes in memory."""
    memory: Tensor = getattr(handle, _MEMORY)
    return memory.numel()


@functools.cache
def kernel() -> Kernel:
    """The kernel for this machine, from the cache or compiled now (some seconds).

    Raises:
        NoKernel: switched off, no CPU of a known level, no compiler, no place to keep it, or the compiled code is
            wrong.
    """
    if os.environ.get(SETTING, "1").strip() == "0":
        raise NoKernel(f"{SETTING} is 0")
    level = level_of(torch.cpu.get_capabilities())
    try:
        return _kept_or_made(level)
    except OSError as error:
        raise NoKernel(f"it cannot be kept: {error}") from None


def _kept_or_made(level: Level) -> Kernel:
    compiler, flags = _compiler(), _flags(level)
    name = f"packed_linear-{_digest(compiler, flags)}"
    place = cache_folder("kernels")
    for kept in place.glob(f"{name}-*.so"):
        if kept.stem == f"{name}-{_content(kept)}":
            return _loaded(kept, level)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        made = Path(folder) / "made.so"
        _compile([*compiler, *flags, "-o", str(made)])
        found = _loaded(made, level)
        check(found)
        made.replace(place / f"{name}-{_content(made)}.so")
    return found


def level_of(capabilities: Mapping[str, Any]) -> Level:
    """The first level whose features this CPU has all.

    Raises:
        NoKernel: it has those of none.
    """
    for level in LEVELS:
        if all(capabilities.get(feature) for feature in level.features):
            return level
    name = capabilities.get("architecture", "this CPU")
    raise NoKernel(f"{name} has neither AVX-512 nor AVX2 with FMA")


def check(found: Kernel) -> None:
    """Compare with float64, within the rounding of a sum in float32.

    Raises:
        NoKernel: an output is further away.
    """
    numbers = torch.Generator().manual_seed(0)
    for outputs, inputs, rows in _CHECKED:
        x, whole = (torch.randn(n, inputs, generator=numbers) for n in (rows, outputs))
        bias = torch.randn(outputs, generator=numbers)
        for dropped in _DROPPED:
            weight = (whole.view(torch.int32) >> dropped << dropped).view(torch.float32)
            _check_product(found, x, weight, bias)


def _check_product(found: Kernel, x: Tensor, weight: Tensor, bias: Tensor) -> None:
    outputs, inputs = weight.shape
    terms = x.abs().double() @ weight.abs().double().t() + bias.abs()
    bound = (inputs + 1) * torch.finfo(torch.float32).eps * terms
    for added in (None, bias):
        exact = F.linear(x.double(), weight.double(), None if added is None else added.double())
        made = found.run(x, found.pack(weight), outputs, added)
        _check_close(made, exact, bound)
        if outputs % 2 == 0:
            _check_halves(found, x, weight, added, exact, bound)


def _check_halves(
    found: Kernel, x: Tensor, weight: Tensor, bias: Tensor | None, exact: Tensor, bound: Tensor
) -> None:
    packed, outputs = found.pack_halves(weight), len(weight)
    _check_close(found.run_halves(x, packed, outputs, bias, NO_ACT), exact, bound)
    if x.shape[1] > DEPTH:
        return
    (first, second), (near, far) = exact.chunk(2, dim=-1), bound.chunk(2, dim=-1)
    for code, act in _ACTIVATIONS.items():
        made = found.run_halves(x, packed, outputs, bias, code)
        # Neither activation is steeper than 1.13. The last term: of the activation itself.
        allowed = 1.13 * near * (second.abs() + far) + (act(first).abs() + near) * far
        rounding = 16 * torch.finfo(torch.float32).eps * (first * second).abs()
        _check_close(made, act(first) * second, allowed + rounding + 1e-30)


def _check_close(made: Tensor, exact: Tensor, bound: Tensor) -> None:
    if not ((made - exact).abs() <= bound).all():  # also where it is not a number
        rows, outputs = made.shape
        raise NoKernel(f"the compiled code is wrong for {rows} rows of {outputs} outputs")


def _compiler() -> list[str]:
    """The command that torch.compile uses as well, with its words."""
    given = os.environ.get("CXX", "")
    try:
        words = shlex.split(given) or ["g++"]
    except ValueError as error:
        raise NoKernel(f"CXX is no command: `{given}`: {error}") from None
    if shutil.which(words[0]) is None:
        raise NoKernel(f"there is no C++ compiler `{words[0]}`")
    return words


def _flags(level: Level) -> list[str]:
    return [
        "-std=c++20", "-O3", f"-march={level.architecture}", f"-DLANES={level.lanes}",
        f"-DROWS={level.rows}", f"-DDEPTH={DEPTH}", "-shared", "-fPIC", *(f"-I{p}" for p in include_paths()),
        str(_SOURCE), *(f"-L{p}" for p in library_paths()), "-ltorch_cpu", "-ltorch",
    ]  # fmt: skip


def _digest(compiler: list[str], flags: list[str]) -> str:
    # All its words: the first may be one that calls another compiler, as ccache.
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    sources = (file.read_text(encoding="utf-8") for file in sorted(_SOURCE.parent.glob("*.[ch]*")))
    parts = (*sources, torch.__version__, version.stdout, *compiler, *flags)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise NoKernel(f"{command[0]} failed: {lines[0].strip()}")


def _loaded(file: Path, level: Level) -> Kernel:
    try:
        torch.ops.load_library(file)
    except OSError as error:
        raise NoKernel(f"{file.name} cannot be loaded: {error.__cause__ or error}") from None
    for name, shape in (("packed_linear", _shape), ("packed_halves", _shape_of_halves)):
        torch.library.register_fake(f"neuron_autoport::{name}", shape, lib=_LIBRARY)
    made = torch.ops.neuron_autoport
    return Kernel(level, made.packed_linear.default, made.packed_halves.default, made.pack.default)


def _shape(x: Tensor, handle: Tensor, out: int, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], out))


def _shape_of_halves(x: Tensor, handle: Tensor, out: int, bias: Tensor | None, act: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], out // 2 if act else out))
