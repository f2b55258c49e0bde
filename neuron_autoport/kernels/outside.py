"""NK functions from other packages: found by entry point or by the variable AUTOPORT_KERNELS.

    [project.entry-points."neuron_autoport.kernels"]
    softcap = "my_kernels.softcap"

or, with nothing installed, AUTOPORT_KERNELS=my_kernels.softcap (several: separated by commas). Both name
modules that define functions with `@nk_function`; rules then call them as NK.name, like our own.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from neuron_autoport.errors import AutoportError
from neuron_autoport.kernels.dispatch import FUNCTIONS

GROUP = "neuron_autoport.kernels"
VARIABLE = "AUTOPORT_KERNELS"


@functools.cache
def _load(listed: str) -> None:
    """Import the modules of `listed` and of the entry points, once per value of the variable."""
    sources = [(name.strip(), VARIABLE) for name in listed.split(",") if name.strip()]
    sources += [(e.module, f"entry point {e.name} of {GROUP}") for e in entry_points(group=GROUP)]
    for module, place in sources:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise AutoportError(
                f"the kernels of {module} cannot be imported: {error}",
                where=place,
                next_step=f"export PYTHONPATH=FOLDER, the one that has {module.partition('.')[0]}",
            ) from None


def load() -> None:
    """Import every package that adds functions to NK.

    Raises:
        AutoportError: one cannot be imported.
    """
    _load(os.environ.get(VARIABLE, ""))


def find(name: str) -> Callable[..., Any] | None:
    """The NK function of this name, from wherever it comes; None if there is none.

    Raises:
        AutoportError: as `load`.
    """
    if name not in FUNCTIONS:
        load()
    return FUNCTIONS.get(name)


def digest() -> str:
    """A hash of the sources of all NK functions of other packages, for keys of caches; "" if none."""
    load()
    paths = {inspect.getfile(inspect.unwrap(f)) for f in FUNCTIONS.values()}
    outside = sorted(path for path in paths if Path(path).parent != Path(__file__).parent)
    found = hashlib.sha256()
    for path in outside:
        found.update(Path(path).read_bytes())
    return found.hexdigest() if outside else ""
