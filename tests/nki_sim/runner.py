"""Running kernels in tests: the one place that decides what executes them.

With the real `nki` installed its own simulator runs them; without it the one of this folder does,
registered as `nki` in `sys.modules` for as long as the `nki_simulator` fixture lives.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.nki_sim.machine import Launch


# How often each kernel ran to its end, by its name.
ran: Counter[str] = Counter()


def real_nki() -> bool:
    """Whether the vendor's package is here. A name holder called `nki` has no `nki.language`."""
    found = sys.modules.get("nki.language")
    if found is not None:
        return not found.__name__.startswith("tests.")
    try:
        importlib.import_module("nki.language")
    except ImportError:
        return False
    return True


def simulator_modules() -> dict[str, ModuleType]:
    """The modules that stand for `nki` and what lies below it."""
    from tests.nki_sim import isa, kernel, language

    root = ModuleType("nki", "The NKI simulator of the tests.")
    root.__path__ = []
    constants = ModuleType("nki.isa.constants")
    vars(constants).update(isa.ENUMS)
    vars(root).update(
        jit=kernel.jit, simulate=kernel.simulate, language=language, isa=isa, dtype=str
    )
    return {
        "nki": root,
        "nki.language": language,
        "nki.isa": isa,
        "nki.isa.constants": constants,
    }


@contextmanager
def registered() -> Iterator[bool]:
    """Have `import nki` work: yields whether it is the simulator of this folder."""
    if real_nki():
        yield False
        return
    modules = simulator_modules()
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield True
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def run(kernel: Any, *args: Any, lnc: int = 1, **kwargs: Any) -> Any:
    """Run a kernel on `lnc` cores and return its results.

    Args:
        kernel: a function under `@nki.jit`.
        args, kwargs: contiguous torch tensors or NumPy arrays, and plain constants.

    Returns:
        What the kernel returned, tensors as torch tensors if one went in, else as NumPy arrays.

    Raises:
        tests.nki_sim.errors.SimError: the kernel did what the device does not do (only with the
            simulator of this folder).
    """
    import nki

    results = nki.simulate(kernel[lnc])(*args, **kwargs)
    ran[getattr(kernel, "__name__", type(kernel).__name__)] += 1
    return results


def last_launch() -> Launch:
    """The last launch in the simulator of this folder: its cores' instructions and memory use."""
    from tests.nki_sim import kernel

    return kernel.launches[-1]


@contextmanager
def lenient() -> Iterator[None]:
    """Let kernels read memory that nothing wrote: it is NaN, as in the vendor's simulator.

    For kernels of others, which may compute on rows whose results they throw away.
    """
    from tests.nki_sim import access

    access.allowed.add(access.UNWRITTEN_IS_NAN)
    try:
        yield
    finally:
        access.allowed.discard(access.UNWRITTEN_IS_NAN)


@pytest.fixture(scope="module")
def nki_simulator() -> Iterator[bool]:
    """`import nki` works in this test module; the value says whether it is our simulator."""
    with registered() as ours:
        yield ours
