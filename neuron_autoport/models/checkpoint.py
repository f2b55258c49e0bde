"""Is a checkpoint what the model takes? Files that cannot be read, tensors that are missing or of other shapes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from neuron_autoport.errors import ModelError
from neuron_autoport.nearest import nearest

LEFT_OUT = "tensors of the checkpoint that no module takes are left out"
_SHOWN = 3
_AGAIN = "copy it again from where it came from"


def check_files(folder: Path | None) -> None:
    """Open each safetensors file of a folder, and see that there are those its index names.

    Raises:
        ModelError: a file is cut off or is none, or is not there; with its name.
    """
    if folder is None:
        return
    for index in sorted(folder.glob("*.safetensors.index.json")):
        _check_index(index)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            size = file.stat().st_size if file.exists() else 0
            what = f"This file is no whole safetensors file ({size} bytes): {error}."
            raise ModelError(what, str(file), _AGAIN) from None


def _check_index(index: Path) -> None:
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"This file is no index of safetensors files: {type(error).__name__}: {error}."
        raise ModelError(what, str(index), _AGAIN) from None
    gone = sorted(f for f in files if not (index.parent / str(f)).is_file())
    if gone:
        what = f"The index names files that are not there: {listed(gone)}."
        raise ModelError(what, str(index), f"copy them to {index.parent}")


def check_loaded(info: dict[str, Any], name: str) -> None:
    """What loading said of the checkpoint's tensors.

    Args:
        info: the loading info of transformers. name: the model, for errors.

    Raises:
        ModelError: a tensor is missing, or has another shape: it would be made up.
    """
    mismatched = [_shapes(m) for m in sorted(info.get("mismatched_keys") or ())]
    if mismatched:
        raise _other_shapes(mismatched, name, name)
    missing = sorted(info.get("missing_keys") or ())
    extra = sorted(info.get("unexpected_keys") or ())
    if missing:
        close = nearest(missing[0], extra)
        hint = f" The nearest that no module takes is {close[0]}." if close else ""
        what = f"The checkpoint lacks tensors of the model: {listed(missing)}.{hint}"
        raise ModelError(what, name, f"autoport inspect {name} shows what config.json asks for")
    if extra:
        logging.getLogger("neuron_autoport").warning("%s: %s", LEFT_OUT, listed(extra))


def check_shape(tensor: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same for one tensor that is read later.

    Raises:
        ModelError: the shapes differ.
    """
    if found.shape != wanted.shape:
        raise _other_shapes([_shapes((tensor, found.shape, wanted.shape))], tensor)


def _other_shapes(named: list[str], where: str, folder: str = "FOLDER") -> ModelError:
    what = f"Tensors of the checkpoint have other shapes than the model's: {listed(named)}."
    return ModelError(what, where, f"autoport inspect {folder} shows what config.json asks for")


def _shapes(mismatch: Any) -> str:
    """`name (is [3, 3], must be [96, 64])`."""
    if isinstance(mismatch, str):
        return mismatch
    name, found, wanted = mismatch
    return f"{name} (is {list(found)}, must be {list(wanted)})"


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
