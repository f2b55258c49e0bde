"""`nl.NKIObject`: classes that kernels may use, which behave like data classes.

The NKI library relies on more than Python's data classes give: un-annotated class attributes are
fields too, and a field that is not given and has no default is None.
"""

from __future__ import annotations

import inspect
from typing import Any


class _Fields(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__init__ is object.__init__:  # type: ignore[misc]
            return _fill(cls, args, kwargs)
        parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        extra: dict[str, Any] = {}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            unknown = [n for n in kwargs if n not in parameters and hasattr(cls, n)]
            extra = {name: kwargs.pop(name) for name in unknown}
        if hasattr(cls, "__dataclass_fields__"):
            for name, parameter in list(parameters.items())[1 + len(args) :]:
                if parameter.default is parameter.empty and name not in kwargs:
                    kwargs[name] = None
        made = super().__call__(*args, **kwargs)
        for name, value in extra.items():
            setattr(made, name, value)
        return made


def _fill(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An instance of a class without `__init__`."""
    made: Any = object.__new__(cls)
    names: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names.update(getattr(base, "__annotations__", {}))
    given = dict(zip(names, args, strict=False)) | kwargs
    for name in names:
        setattr(made, name, given.pop(name, getattr(cls, name, None)))
    for name, value in given.items():
        setattr(made, name, value)
    if hasattr(made, "__post_init__"):
        made.__post_init__()
    return made


class NKIObject(metaclass=_Fields):
    """Base of the classes a kernel may make."""
