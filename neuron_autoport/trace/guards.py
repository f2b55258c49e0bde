"""What a trace depends on: the attributes its forward read, and the kind of inputs it got.

A trace made for one layer is good for another layer of the same class if every attribute the
forward read has the same value there. Attributes are watched, not guessed: an unread `layer_idx`
keeps no two layers apart, a read `sliding_window` does.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
# Read by `nn.Module` itself on every call; they say nothing of the computation.
_MACHINERY = {"gradient_checkpointing", *dir(nn.Module()), *vars(nn.Module())}


def snapshot(value: Any) -> Any:
    """A comparable picture of an attribute's value."""
    return _picture_of(type(value))(value)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1 << 12)
def _picture_of(kind: type) -> Callable[[Any], Any]:
    """How values of a class are pictured; the class is asked, as a value may answer `isinstance` by itself."""
    if issubclass(kind, _PLAIN):
        return lambda value: value
    if issubclass(kind, torch.Tensor):
        return lambda value: ("tensor", tuple(value.shape), value.dtype)
    if issubclass(kind, list | tuple):
        return lambda value: (kind.__name__, *(snapshot(v) for v in value))
    if kind is dict:
        return lambda value: ("dict", *((snapshot(k), snapshot(v)) for k, v in value.items()))
    if issubclass(kind, nn.Module):
        return _module
    if issubclass(kind, functools.partial):
        return _partial
    return lambda value: ("object", id(value))


def _module(value: nn.Module) -> Any:
    """Iterating a container of modules is seen by no attribute read: its children count."""
    below = value._modules
    return ("module", type(value), tuple((n, type(c)) for n, c in below.items()) if below else ())


def _partial(value: functools.partial[Any]) -> Any:
    keywords = tuple(sorted((k, snapshot(v)) for k, v in value.keywords.items()))
    return ("partial", snapshot(value.func), snapshot(value.args), keywords)


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
        return ("tensor", number, tuple(value.shape), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(_hashable(v, seen) for v in value)
    if isinstance(value, dict):
        return ("dict", *((repr(k), _hashable(v, seen)) for k, v in value.items()))
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
