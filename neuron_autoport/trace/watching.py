"""Watching what a forward reads: of its module, and of the children that it gets hold of there.

While watched, a module has a class of its own that notes every attribute read. A child is watched for its caller,
by its dotted path, until it is called: then it is recorded by itself, and its own reads are its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from neuron_autoport.trace.pictures import CONTAINERS, WATCHES, class_of, snapshot

# Read by `nn.Module` itself on every call; they say nothing of the computation.
_MACHINERY = {"gradient_checkpointing", *dir(nn.Module()), *vars(nn.Module())}


class _Recording:
    """The reads of one forward under way, with a picture of each value, by dotted name.

    shared: may the trace be one of several modules? before: who watched each of its modules when it began to.
    below: what was found through each of them, by identity.
    """

    def __init__(self, shared: Callable[[], bool]) -> None:
        self.reads: dict[str, Any] = {}
        self.shared = shared
        self.before: list[tuple[nn.Module, _Watch | None]] = []
        self.below: dict[int, list[nn.Module]] = {}

    def watch(self, module: nn.Module, prefix: str) -> None:
        self.before.append((module, _watches.get(id(module))))
        _set_watch(module, (self, prefix))

    def follow(self, holder: nn.Module, child: nn.Module, prefix: str) -> None:
        """Watch a child that was found through `holder`; of a container what it holds, which no read tells.

        That may be all layers of the model, and is left out where nothing hangs on it.
        """
        watch = _watches.get(id(child))
        if watch is not None and watch[0] is self:
            return
        self.below.setdefault(id(holder), []).append(child)
        self.watch(child, prefix)
        if isinstance(child, CONTAINERS) and self.shared():
            for name, item in child.named_children():
                self.follow(child, item, f"{prefix}{name}.")

    def found_through(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module, and what is watched below it."""
        yield module
        for child in self.below.get(id(module), ()):
            yield from self.found_through(child)


_Watch: TypeAlias = tuple[_Recording, str]
_watches: dict[int, _Watch] = {}  # by the module's identity
_watching_classes: dict[type[nn.Module], type[nn.Module]] = {}


@contextmanager
def watch_reads(module: nn.Module, shared: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """While open, note every attribute read on this one instance, and on its children; classes are put back after.

    Args:
        shared: may others have the same trace?
    """
    recording = _Recording(shared)
    recording.watch(module, "")
    try:
        yield recording.reads
    finally:
        for watched, before in reversed(recording.before):
            _set_watch(watched, before)


def is_watched(module: nn.Module) -> bool:
    """Does a recording under way note what is read of it?"""
    return id(module) in _watches


@contextmanager
def unwatched(module: nn.Module) -> Iterator[None]:
    """While open, a watched module and what was found through it are as if nobody watched them."""
    recording = _watches[id(module)][0]
    aside = [(m, _watches.get(id(m))) for m in recording.found_through(module)]
    for found, _ in aside:
        _set_watch(found, None)
    try:
        yield
    finally:
        for found, watch in aside:
            _set_watch(found, watch)


def _set_watch(module: nn.Module, watch: _Watch | None) -> None:
    kind = wanted = class_of(module)
    if watch is None:
        _watches.pop(id(module), None)
    else:
        _watches[id(module)] = watch
        if kind not in CONTAINERS:  # slices make more of its class; there is nothing else to read
            wanted = _watching_class(kind)
    if type(module) is not wanted:
        object.__setattr__(module, "__class__", wanted)


def _watching_class(cls: Any) -> type[nn.Module]:
    if cls in _watching_classes:
        return _watching_classes[cls]

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
        WATCHES: cls,
    }
    _watching_classes[cls] = type(cls.__name__, (cls,), body)
    return _watching_classes[cls]


def _note(module: nn.Module, name: str, value: Any) -> None:
    if name.startswith("__") or name in _MACHINERY or isinstance(value, types.MethodType):
        return
    watch = _watches.get(id(module))
    if watch is None:
        return
    recording, prefix = watch
    path = prefix + name
    if path in recording.reads:
        return
    with torch._C.DisableTorchFunction():  # the picture's sizes are not read by the module's code
        recording.reads[path] = snapshot(value)
    if isinstance(value, nn.Module):
        recording.follow(module, value, f"{path}.")
