"""Arguments of a recorded call in one form, for the translators of `translate.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx

from neuron_autoport.trace.ops import Op

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder

Translator = Callable[["Builder", fx.Node, list[Any], dict[str, Any]], Op]

_NUMPY = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}


def bind(names: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments under one set of names; NumPy's names are torch's own."""
    known = names.split()
    named = {_NUMPY[k] if _NUMPY.get(k) in known else k: v for k, v in kwargs.items()}
    return dict(zip(known, args, strict=False)) | named


def from_end(value: Any, rank: int) -> Any:
    """A dimension, or several, counted from the end."""
    if isinstance(value, list | tuple):
        return tuple(from_end(v, rank) for v in value)
    return value - rank if isinstance(value, int) and value >= 0 else value


def rank_of(value: Any) -> int:
    return len(value.shape) if isinstance(value, Op) else 0


def named(value: Any, name: str) -> bool:
    """Is it the result of this canonical operation?"""
    return isinstance(value, Op) and value.name == name
