"""Comparable pictures of attribute values: two that are equal stand for values that compute the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PLAIN = (bool, int, float, str, type(None), torch.dtype)
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
WATCHES = "_autoport_watches"  # of a class that stands in for another while a module is watched: that other


def class_of(module: nn.Module | None) -> Any:
    """The class of a module, whether it is watched now (`watching.py`) or not; of None that of None."""
    kind = type(module)
    return kind.__dict__.get(WATCHES, kind)


def snapshot(value: Any) -> Any:
    """A comparable picture of an attribute's value."""
    kind: Any = type(value)  # hashable, as every class is, which mypy does not see
    return _picture_of(kind)(value)


@functools.lru_cache(maxsize=1 << 12)
def _picture_of(kind: type) -> Callable[[Any], Any]:
    """How values of a class are pictured; the class is asked, as a value may answer `isinstance` by itself."""
    if issubclass(kind, PLAIN):
        return lambda value: value
    if issubclass(kind, torch.Tensor):
        return lambda value: ("tensor", tuple(value.shape), value.dtype)
    if issubclass(kind, list | tuple):
        return lambda value: (kind.__name__, *(snapshot(v) for v in value))
    if kind is dict:
        return lambda value: ("dict", *((snapshot(k), snapshot(v)) for k, v in value.items()))
    if issubclass(kind, nn.Module):
        return module_picture
    if issubclass(kind, functools.partial):
        return _partial
    return lambda value: ("object", id(value))


def module_picture(value: nn.Module) -> Any:
    """Iterating a container of modules is seen by no attribute read: its children count, and theirs if they contain."""
    below = value._modules
    if not below:
        return ("module", class_of(value), ())
    named = (
        (n, module_picture(c) if isinstance(c, CONTAINERS) else class_of(c))
        for n, c in below.items()
    )
    return ("module", class_of(value), tuple(named))


def _partial(value: functools.partial[Any]) -> Any:
    keywords = tuple(sorted((k, snapshot(v)) for k, v in value.keywords.items()))
    return ("partial", snapshot(value.func), snapshot(value.args), keywords)
