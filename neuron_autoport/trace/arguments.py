"""Arguments of a recorded call in one form, for the translators of `translate.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
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


def positional(
    forward: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a child's call with those given by keyword at their places, as far as they have one.

    `norm(hidden_states=x)` and `norm(x)` are one call. What `*args` or `**kwargs` takes, what is only known by
    keyword, and what stands behind an argument that is left out stay keywords.

    Args:
        forward: the function of the child's class, `self` its first parameter.
    """
    if not kwargs:
        return args, kwargs
    placed, named = list(args), dict(kwargs)
    for name in _places(forward)[len(args) :]:
        if name not in named:
            break
        placed.append(named.pop(name))
    return placed, named


@lru_cache(maxsize=1 << 10)
def _places(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Parameters that can be given by place or by keyword, without `self`; none behind `*args`."""
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


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
