"""Write an export to its folder: all of it, or nothing."""

from __future__ import annotations

import keyword
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from neuron_autoport.errors import AutoportError
from neuron_autoport.export.check import check_package
from neuron_autoport.export.package import Package, package
from neuron_autoport.export.subject import subject
from neuron_autoport.models.source import ModelSource
from neuron_autoport.rules.rule import Rule


class OutputError(AutoportError):
    """The output folder cannot be used."""


def export(
    source: ModelSource,
    folder: Path,
    rules: Iterable[Rule],
    *,
    force: bool = False,
    without: frozenset[str] = frozenset(),
) -> Package:
    """Write the package of a model to a folder that does not exist yet.

    Args:
        rules: the library. force: replace what is there. without: rules not to use.

    Raises:
        OutputError: the folder exists or cannot be written.
        ExportError, NeuronHostError: the model cannot be exported; by name and reason.
        ProofFailed: the exported source computes something else.
    """
    target = folder.expanduser().absolute()
    if target.exists() and not force:
        raise OutputError(
            "The output folder exists already.", str(folder), "the same with --force replaces it"
        )
    found = subject(source, rules, without)
    made = package(found, package_name(target, source.config.model_type))
    check_package(found, made)
    write_files(made.files, target)
    return made


def package_name(folder: Path, model_type: str) -> str:
    """The folder's name, or one of the model type where that is no Python name."""
    name = folder.name
    return (
        name
        if name.isidentifier() and not keyword.iskeyword(name)
        else f"neuron_{_plain(model_type)}"
    )


def _plain(text: str) -> str:
    return re.sub(r"\W", "_", text)


def write_files(files: dict[str, str], target: Path) -> None:
    """Write to a folder beside the target, then rename: an interrupted run leaves nothing.

    Raises:
        OutputError: the place cannot be written.
    """
    scratch = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent)
        new = Path(scratch) / "new"
        new.mkdir()
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
        if target.is_symlink() or target.exists():
            os.replace(target, Path(scratch) / "old")
        os.replace(new, target)
    except OSError as error:
        old = Path(scratch) / "old"
        if scratch and old.exists() and not target.exists():
            os.replace(old, target)  # what was there comes back
        step = "choose a folder that can be written with -o"
        raise OutputError(
            f"The package cannot be written: {error.strerror}.", str(target), step
        ) from None
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
