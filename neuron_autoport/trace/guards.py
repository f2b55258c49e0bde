"""What a trace depends on: the attributes its forward read, and the kind of inputs it got.

A trace made for one layer is good for another layer of the same class if every attribute the
forward read has the same value there. Attributes are watched, not guessed: an unread `layer_idx`
keeps no two layers apart, a read `sliding_window` does.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
# Read by `nn.Module` itself on every call; they say nothing of the computation.
_MACHINERY = {"gradient_checkpointing", *dir(nn.Module()), *vars(nn.Module())}


def snapshot(value: Any) -> Any:
    """A comparable picture of an attribute's value."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(snapshot(v) for v in value))
    if isinstance(value, nn.Module):
        # Iterating a container of modules is seen by no attribute read: its children count.
        return ("module", type(value), tuple((n, type(c)) for n, c in value._modules.items()))
    if isinstance(value, functools.partial):
        keywords = tuple(sorted((k, snapshot(v)) for k, v in value.keywords.items()))
        return ("partial", snapshot(value.func), snapshot(value.args), keywords)
    return ("object", id(value))


def _watching_class(cls: Any) -> type[nn.Module]:
    if cls in _watching:
        return _watching[cls]

    def __getattribute__(self: nn.Module, name: str) -> Any:
        value = cls.__getattribute__(self, name)
        _note(self, name, value)
        return value

    def __getattr__(self: nn.Module, name: str) -> Any:
        value = cls.__getattr__(self, name)
        _note(self, name, value)
        return value

    body = {
        "__getattribute__": __getattribute__,
        "__getattr__": __getattr__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    _watching[cls] = type(cls.__name__, (cls,), body)
    return _watching[cls]


_watching: dict[type[nn.Module], type[nn.Module]] = {}


def _note(module: nn.Module, name: str, value: Any) -> None:
    if name.startswith("__") or name in _MACHINERY or isinstance(value, types.MethodType):
        return
    reads = _reads.get(id(module))
    if reads is not None:
        reads.setdefault(name, snapshot(value))


_reads: dict[int, dict[str, Any]] = {}


@contextmanager
def watch_reads(module: nn.Module) -> Iterator[dict[str, Any]]:
    """While open, note every attribute read on this one instance; its class is put back after."""
    reads: dict[str, Any] = {}
    if id(module) in _reads:
        yield reads
        return
    cls = type(module)
    _reads[id(module)] = reads
    object.__setattr__(module, "__class__", _watching_class(cls))
    try:
        yield reads
    finally:
        object.__setattr__(module, "__class__", cls)
        del _reads[id(module)]


def input_signature(args: Any, kwargs: Any) -> Any:
    """Hashable picture of call arguments: tensors by shape and dtype, plain values as they are.

    The same tensor given twice is seen as such: a trace of `f(x, x)` is not one of `f(x, y)`.
    """
    seen: dict[int, int] = {}
    named = sorted(kwargs.items())
    return _hashable(args, seen), tuple((k, _hashable(v, seen)) for k, v in named)


def _hashable(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        number = seen.setdefault(id(value), len(seen))
        return str(("tensor", number, tuple(value.shape), value.dtype))
    if isinstance(value, list | tuple):
        return str(tuple(_hashable(v, seen) for v in value))
    if isinstance(value, dict):
        return str({k: _hashable(v, seen) for k, v in value.items()})
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
