"""Is an exported package right? Its names and shapes, and a small package run against transformers."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from neuron_autoport.errors import ProofFailed
from neuron_autoport.export.package import Package, package
from neuron_autoport.export.subject import ExportError, Subject, small_subject
from neuron_autoport.hosts.neuron.checkpoint import MemoryCheckpoint
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.options import ALONE
from neuron_autoport.hosts.neuron.selftest import TOLERANCE, Trial, small_source
from neuron_autoport.hosts.neuron.stepper import hosted_logits
from neuron_autoport.hosts.weights.names import ModelNames
from neuron_autoport.nf.dispatch import reference

# What exported source may raise that lacks something of transformers.
_DOES_NOT_RUN = (
    AttributeError, TypeError, NameError, KeyError, IndexError, RuntimeError, ImportError, SyntaxError,
)  # fmt: skip


def load_package(folder: Path) -> ModuleType:
    """Import a package from its folder as it is now, under a name of its content."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.read_bytes() + b"\0")
    name = f"neuron_autoport_package_{digest.hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        importlib.import_module(f"{name}.factory")
    except BaseException:
        for loaded in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return module


def model_class(module: ModuleType) -> Any:
    """The class that a loaded package registers."""
    return getattr(module.factory, module.ARCHITECTURE)


def check_package(subject: Subject, made: Package) -> None:
    """Compare a package's tensors with transformers', and run the package of a small model.

    Raises:
        ExportError: the exported source does not run.
        ProofFailed: tensors are named or shaped otherwise, or the small model gives other logits.
    """
    name = subject.source.name
    try:
        error = _tried(subject, made)
    except _DOES_NOT_RUN as fault:
        said = (str(fault).splitlines() or [""])[0]
        what = f"the exported source does not run: {type(fault).__name__}: {said}"
        raise ExportError(what, name, f"autoport inspect {name} --diff") from fault
    if not error <= TOLERANCE:
        what = (
            f"the exported source of a small model gives other logits (relative error {error:.1e})"
        )
        raise ProofFailed(what, name, f"autoport inspect {name} --prove")


def _tried(subject: Subject, made: Package) -> float:
    """Error of the small package's logits; the tensors of the whole one are compared before."""
    name = subject.source.name
    with tempfile.TemporaryDirectory() as scratch, reference():
        cls = model_class(load_package(_write(made, Path(scratch) / "whole")))
        config = copy.deepcopy(subject.recorded.base.config)
        _compare_names(cls.from_configs(config), ModelNames.of(subject.recorded.model), name)
        small = small_source(subject.source)
        trial = Trial(NeuronTransformersForCausalLM, subject.ported, small, ALONE, subject.rules)
        of_small = package(small_subject(subject, trial), "small")
        cls = model_class(load_package(_write(of_small, Path(scratch) / "small")))
        return _error(cls, trial, small.text_config)


def _write(made: Package, folder: Path) -> Path:
    folder.mkdir()
    for file, text in made.files.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def _compare_names(model: Any, wanted: ModelNames, name: str) -> None:
    ours = {n: tuple(t.shape) for n, t in model.loading.names.tensors.items()}
    theirs = {n: tuple(t.shape) for n, t in wanted.tensors.items()}
    different = sorted(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))
    if different:
        first = different[0]
        what = (
            f"the exported source has {first} {ours.get(first)}, transformers {theirs.get(first)}"
        )
        raise ProofFailed(what, name, f"autoport inspect {name} --diff")


def _error(cls: Any, trial: Trial, config: Any) -> float:
    """Largest difference of logits, relative to the largest logit."""
    small = copy.deepcopy(config)
    small.dtype = torch.float32
    model = cls.from_configs(small)
    model.loading.load(model, MemoryCheckpoint(trial.state), "cpu")
    got = hosted_logits(model, trial.prompts, trial.continued)
    difference = float((got - trial.wanted).abs().max() / trial.wanted.abs().max())
    return difference if difference == difference else float("inf")
