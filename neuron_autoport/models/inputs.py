"""What a module is called with, as a user writes it: `2,8,64`, `ids=2,8:int`, `mask=2,1,8,8:bool`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from neuron_autoport.errors import ModelError

Kind = Literal["float", "int", "bool"]
Call = tuple[tuple[Any, ...], dict[str, Any]]

_FORM = re.compile(r"(?:([A-Za-z_]\w*)=)?(\d+(?:,\d+)*)(?::(\w+))?")
_STEP = "write sizes as --input 2,8,64; --input NAME=2,8:int for an argument by name, or int, bool"


@dataclass(frozen=True)
class Input:
    """One tensor argument of a forward.

    shape: its sizes. kind: float (the dtype of the module), int (0 or 1) or bool (all True).
    name: of the argument; None if it is given by position.
    """

    shape: tuple[int, ...]
    kind: Kind = "float"
    name: str | None = None

    def on_meta(self, dtype: torch.dtype) -> Tensor:
        """A tensor without data; `dtype` is that of float ones."""
        return torch.empty(self.shape, dtype=self._dtype(dtype), device="meta")

    def random(self, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor on the CPU: floats are drawn from a normal distribution."""
        if self.kind == "float":
            return torch.randn(self.shape, generator=generator).to(dtype)
        if self.kind == "bool":
            return torch.ones(self.shape, dtype=torch.bool)
        return torch.randint(0, 2, self.shape, generator=generator)

    def _dtype(self, of_floats: torch.dtype) -> torch.dtype:
        return {"float": of_floats, "int": torch.int64, "bool": torch.bool}[self.kind]

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        kind = "" if self.kind == "float" else f":{self.kind}"
        return f"{name}{','.join(map(str, self.shape))}{kind}"


def parse_input(text: str) -> Input:
    """One `--input`.

    Raises:
        ModelError: the text is not of this form.
    """
    found = _FORM.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ModelError(f"`{text}` is no input: expected sizes.", "--input", _STEP)
    name, sizes, kind = found.groups()
    known: dict[str | None, Kind] = {None: "float", **{k: k for k in get_args(Kind)}}
    if kind not in known:
        raise ModelError(f"`{kind}` is no kind of input: float, int or bool.", "--input", _STEP)
    shape = tuple(int(n) for n in sizes.split(","))
    if not all(shape):
        raise ModelError(f"`{text}` has a size of zero.", "--input", _STEP)
    return Input(shape, known[kind], name)


def meta_call(inputs: Iterable[Input], dtype: torch.dtype) -> Call:
    """Arguments without data: those by position, and those by name."""
    return _call((i, i.on_meta(dtype)) for i in inputs)


def random_call(inputs: Iterable[Input], generator: torch.Generator) -> Call:
    """Arguments on the CPU, floats in float32."""
    return _call((i, i.random(generator)) for i in inputs)


def _call(made: Iterable[tuple[Input, Tensor]]) -> Call:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for given, tensor in made:
        if given.name is None:
            args.append(tensor)
        else:
            kwargs[given.name] = tensor
    return tuple(args), kwargs
