"""What a trace depends on: the attributes its forward read, and the kind of inputs it got.

A trace made for one layer is good for another layer of the same class if every attribute the
forward read has the same value there. Attributes are watched (`watching.py`), not guessed: an unread
`layer_idx` keeps no two layers apart, a read `sliding_window` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neuron_autoport.trace.pictures import PLAIN, module_picture, snapshot


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
        of_instance = {
            name: by_dict and "." not in name and not hasattr(cls, name) for name in reads
        }
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
        if self.modules:
            children = own["_modules"]
            for name, kind, seen in self.modules:
                child = own[name] if name in own else children.get(name)
                if type(child) is not kind or module_picture(child) != seen:
                    return False
        for name, seen, of_instance in self.others:
            if of_instance:
                left_out = seen is None and name in parameters and name not in own  # a bias, say
                value = parameters[name] if left_out else _found(own, name)
            else:
                value = _at(module, name)
            if value is not seen and snapshot(value) != seen:
                return False
        return True


def _at(module: nn.Module, path: str) -> Any:
    """As `getattr` with None, by a dotted path; what a container holds is an attribute of it, too."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _found(own: dict[str, Any], name: str) -> Any:
    """As `getattr` with None, of a module that has these attributes, where its class has none of that name."""
    if name in own:
        return own[name]
    for members in (own["_parameters"], own["_buffers"]):
        if name in members:
            return members[name]
    return own["_modules"].get(name)


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
    return repr(value) if isinstance(value, PLAIN) else type(value).__name__
