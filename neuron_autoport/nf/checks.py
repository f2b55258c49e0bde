"""Refusals shared by the torch references: an argument that cannot be honoured is an error, never
ignored.

The plugin's own torch path ignores several arguments without a word. Here each of them raises and
names itself: `NotImplementedError` for what only the kernels do, `ValueError` for what is wrong.
"""

from __future__ import annotations

from enum import Enum

from torch import Tensor


def member(function: str, name: str, value: object, enum: type[Enum]) -> None:
    """Raise TypeError unless `value` is a member of `enum`."""
    if not isinstance(value, enum):
        names = ", ".join(each.name for each in enum)
        raise TypeError(
            f"NF.{function}: {name} must be a member of NF.{enum.__name__} ({names}), got {value!r}"
        )


def refuse(function: str, why: str, **arguments: object) -> None:
    """Raise NotImplementedError naming the first argument that is set (neither None nor False)."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise NotImplementedError(
                f"NF.{function}: {name} is not supported by the reference: {why}"
            )


def unused(function: str, why: str, **arguments: object) -> None:
    """Raise ValueError naming the first argument that is set but would have no effect."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ValueError(f"NF.{function}: {name} is given but would have no effect: {why}")


def required(function: str, why: str, **arguments: object) -> None:
    """Raise ValueError naming the first argument that is None."""
    for name, value in arguments.items():
        if value is None:
            raise ValueError(f"NF.{function}: {name} is required {why}")


def row(function: str, name: str, value: Tensor | None, width: int) -> None:
    """Raise ValueError unless `value` is None or a row [1, width]."""
    if value is not None and (value.dim() != 2 or value.shape[0] != 1 or value.shape[1] != width):
        raise ValueError(
            f"NF.{function}: {name} must be [1, {width}], got {tuple(value.shape)}; "
            f"a vector becomes a row by {name}.view(1, -1)"
        )


def same_shape(
    function: str, name: str, value: Tensor | None, like: Tensor, like_name: str
) -> None:
    """Raise ValueError unless `value` is None or shaped as `like`."""
    if value is not None and value.shape != like.shape:
        raise ValueError(
            f"NF.{function}: {name} must have the shape of {like_name} {tuple(like.shape)}, "
            f"got {tuple(value.shape)}"
        )
