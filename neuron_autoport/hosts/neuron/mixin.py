"""Put a class of the host before a module's own class, whose forward it then stands before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    Before = nn.Module  # what comes after it in the class's order is a module's class
else:
    Before = object


def put_before(module: nn.Module, mixin: type[Any]) -> None:
    """Make `module` an instance of a class of its class's name, with `mixin` before it.

    Args:
        mixin: a subclass of `Before`.
    """
    cls = type(module)
    module.__class__ = type(cls.__name__, (mixin, cls), {"__module__": cls.__module__})
