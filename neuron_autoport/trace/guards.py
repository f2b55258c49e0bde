"""What a trace depends on: the attributes its forward read, and the kind of inputs it got.

A trace made for one layer is good for another layer of the same class if every attribute the
forward read has the same value there. Attributes are watched, not guessed: an unread `layer_idx`
keeps no two layers apart, a read `sliding_window` does.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# Read by `nn.Module` itself on every call; they say nothing of the computation.
_MACHINERY = {"gradient_checkpointing", *dir(nn.Module()), *vars(nn.Module())}


def snapshot(value: Any) -> Any:
    """A comparable picture of an attribute's value."""
    kind: Any = type(value)  # hashable, as every class is, which mypy does not see
    return _picture_of(kind)(value)


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
    """Iterating a container of modules is seen by no attribute read: its children count, and theirs if they contain."""
    below = value._modules
    if not below:
        return ("module", type(value), ())
    named = ((n, _module(c) if isinstance(c, _CONTAINERS) else type(c)) for n, c in below.items())
    return ("module", type(value), tuple(named))


def _partial(value: functools.partial[Any]) -> Any:
    keywords = tuple(sorted((k, snapshot(v)) for k, v in value.keywords.items()))
    return ("partial", snapshot(value.func), snapshot(value.args), keywords)


@dataclass(frozen=True)
class Expected:
    """What was read of a module of one class, in a form that is quick to compare with other modules of it.

    tensors: name, shape and dtype of those that are no attribute of the class. modules: name, class and picture of
    such modules. others: name and picture of the rest, and whether they are no attribute of the class either.
    """

    tensors: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    modules: tuple[tuple[str, type[nn.Module], Any], ...]
    others: tuple[tuple[str, Any, bool], ...]

    @staticmethod
    def of(cls: type[nn.Module], reads: Mapping[str, Any]) -> Expected:
        by_dict = cls.__getattribute__ is object.__getattribute__
        by_dict = by_dict and cls.__getattr__ is nn.Module.__getattr__
        of_instance = {name: by_dict and not hasattr(cls, name) for name in reads}
        kinds = {
            name: seen[0]
            for name, seen in reads.items()
            if of_instance[name] and seen.__class__ is tuple and seen[0] in ("tensor", "module")
        }
        tensors = [(name, reads[name]) for name, kind in kinds.items() if kind == "tensor"]
        modules = [(name, reads[name]) for name, kind in kinds.items() if kind == "module"]
        others = {name: seen for name, seen in reads.items() if name not in kinds}
        return Expected(
            tuple((name, seen[1], seen[2]) for name, seen in tensors),
            tuple((name, seen[1], seen) for name, seen in modules),
            tuple((name, seen, of_instance[name]) for name, seen in others.items()),
        )

    def holds_for(self, module: nn.Module) -> bool:
        """Has `module` the same values? Found where `getattr` finds them, and seldom pictured again."""
        own = module.__dict__
        parameters = own["_parameters"]
        for name, shape, dtype in self.tensors:
            value = parameters.get(name)
            if value is None or name in own:
                value = _found(own, name)
                if not issubclass(type(value), torch.Tensor):
                    return False
            if value.dtype is not dtype or value.shape != shape:
                return False
        children = own["_modules"]
        for name, kind, seen in self.modules:
            child = own[name] if name in own else children.get(name)
            if type(child) is not kind or _module(child) != seen:
                return False
        for name, seen, of_instance in self.others:
            value = _found(own, name) if of_instance else getattr(module, name, None)
            if value is not seen and snapshot(value) != seen:
                return False
        return True


def _found(own: dict[str, Any], name: str) -> Any:
    """As `getattr` with None, of a module that has these attributes, where its class has none of that name."""
    if name in own:
        return own[name]
    for members in (own["_parameters"], own["_buffers"]):
        if name in members:
            return members[name]
    return own["_modules"].get(name)


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
    if reads is not None and name not in reads:
        with (
            torch._C.DisableTorchFunction()
        ):  # sizes that the picture has are not read by the module's code
            reads[name] = snapshot(value)


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
    return _hashable(args, seen), tuple([(k, _hashable(v, seen)) for k, v in named])


def _hashable(value: Any, seen: dict[int, int]) -> Any:
    if value is None or value is False or value is True:  # most often; those are plain values, too
        return repr(value)
    if isinstance(value, torch.Tensor):
        return ("tensor", seen.setdefault(id(value), len(seen)), value.shape, value.dtype)
    if isinstance(value, list | tuple):
        return tuple([_hashable(v, seen) for v in value])
    if isinstance(value, dict):
        return ("dict", *((repr(k), _hashable(v, seen)) for k, v in value.items()))
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
