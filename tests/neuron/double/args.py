"""The arguments of one call, and the checks that make the double strict.

`Args` holds every parameter of a function as an attribute. Its methods raise `ContractError`, an
AssertionError that names the function, the argument, and what the contract asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.neuron.double.state import state

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class ContractError(AssertionError):
    """A call or a model breaks the plugin's written contract."""


class Args:
    """The arguments of one call of `function`, by name."""

    def __init__(self, function: str, values: dict[str, Any]) -> None:
        self.function = function
        self.values = values
        self.traps: list[str] = []

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def trap(self, text: str) -> None:
        """Note a documented trap this call steps into."""
        self.traps.append(text)

    def need(self, condition: bool, text: str) -> None:
        """Refuse the call unless `condition`.

        Raises:
            ContractError: it is false.
        """
        if not condition:
            raise ContractError(f"NF.{self.function}: {text}")

    def shape(self, name: str, *want: int, optional: bool = False) -> None:
        """The tensor `name` has exactly this shape (-1: any size); None only if optional."""
        value = self.values[name]
        if value is None and optional:
            return
        if not isinstance(value, Tensor):
            raise ContractError(f"NF.{self.function}: {name} must be a tensor, got {value!r}")
        got = tuple(value.shape)
        fits = len(got) == len(want) and all(w in (-1, g) for g, w in zip(got, want, strict=True))
        wanted = ", ".join("*" if size == -1 else str(size) for size in want)
        self.need(fits, f"{name} must be [{wanted}], got {list(got)}")

    def dtype(self, name: str, *allowed: torch.dtype) -> None:
        """The tensor `name`, if given, has one of these dtypes."""
        value = self.values[name]
        if value is not None:
            self.need(value.dtype in allowed, f"{name} is {value.dtype}, not one of {allowed}")

    def integers(self, *names: str) -> None:
        """These tensors, if given, are int32 or int64."""
        for name in names:
            self.dtype(name, torch.int32, torch.int64)

    def same_dtype(self, first: str, *others: str) -> None:
        """`others`, where given, have the dtype of `first`, which is the model's."""
        want = self.values[first].dtype
        self.need(want in FLOATS, f"{first} is {want}, not a floating dtype")
        model = state().model_dtype
        self.need(
            model in (None, want),
            f"{first} is {want}; the model's dtype is {model} (kernels need it)",
        )
        for name in others:
            value = self.values[name]
            if value is not None:
                self.need(value.dtype == want, f"{name} is {value.dtype}, {first} is {want}")

    def together(self, *names: str) -> bool:
        """These come all or not at all; true if they are given."""
        given = [self.values[name] is not None for name in names]
        self.need(all(given) or not any(given), f"{', '.join(names)} come together or not at all")
        return all(given)

    def given(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that are not None."""
        return [name for name in names if self.values[name] is not None]
