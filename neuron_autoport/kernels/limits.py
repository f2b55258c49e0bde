"""What our own kernels take, as data: one `Kernel` per NK function, each limit with its reason.

A limit reads one figure of a call, written as the function's parameters name it: `x.shape[-1]`,
`x.dtype`, `q.ndim`, or a plain argument such as `kind`. So the same table serves a real call (tensors), a
plan (shapes and dtypes of a traced graph) and a catalogue (numbers to search).

    for found in broken("softcap_attention", {"q": facts}):
        print(found)          # q.shape[-1] is 320, more than 256: the head is split over ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

UNKNOWN = object()
_FIGURE = re.compile(r"(\w+)(?:\.(shape\[(-?\d+)\]|dtype|ndim))?")
_DTYPES = {
    getattr(torch, name): name
    for name in ("float32", "bfloat16", "float16", "float64", "int32", "int64", "bool")
}


@dataclass(frozen=True)
class Limit:
    """One condition on one figure of a call.

    Attributes:
        of: the figure, e.g. `x.shape[-1]`.
        why: one sentence: what in the kernel sets the limit.
        most, multiple_of, one_of, same_as: the condition; exactly one of them is given. same_as names
            another figure.
        unless: an argument with which, being true, the limit does not count.
    """

    of: str
    why: str
    most: int | None = None
    multiple_of: int | None = None
    one_of: tuple[object, ...] = ()
    same_as: str | None = None
    unless: str = ""

    def __post_init__(self) -> None:
        given = [self.most is not None, self.multiple_of is not None, self.one_of, self.same_as]
        if sum(map(bool, given)) != 1:
            raise ValueError(f"limit on {self.of}: give one of most, multiple_of, one_of, same_as")
        for text in (self.of, self.same_as):
            if text is not None and _FIGURE.fullmatch(text) is None:
                raise ValueError(f"{text!r} is no figure: say x.shape[-1], x.dtype, x.ndim or x")

    def parameters(self) -> frozenset[str]:
        """The parameters of the function that this limit reads."""
        texts = [text for text in (self.of, self.same_as, self.unless) if text]
        return frozenset(text.partition(".")[0] for text in texts)

    def __str__(self) -> str:
        return self._condition() + (f" unless {self.unless}" if self.unless else "")

    def _condition(self) -> str:
        if self.most is not None:
            return f"{self.of} <= {self.most}"
        if self.multiple_of is not None:
            return f"{self.of} % {self.multiple_of} == 0"
        if self.same_as is not None:
            return f"{self.of} == {self.same_as}"
        return f"{self.of} in ({', '.join(map(str, self.one_of))})"

    def broken_by(self, arguments: Mapping[str, Any]) -> str:
        """What is wrong, as `320, more than 256`; empty if the limit holds or cannot be told."""
        value = figure(self.of, arguments)
        if value is UNKNOWN or (self.unless and figure(self.unless, arguments) is True):
            return ""
        if self.most is not None:
            return f"{value}, more than {self.most}" if value > self.most else ""
        if self.multiple_of is not None:
            return f"{value}, no multiple of {self.multiple_of}" if value % self.multiple_of else ""
        if self.same_as is not None:
            other = figure(self.same_as, arguments)
            same = other is UNKNOWN or value == other
            return "" if same else f"{value}, {self.same_as} {other}"
        if value in self.one_of:
            return ""
        return f"{value}, not {' or '.join(map(str, self.one_of))}"


def figure(text: str, arguments: Mapping[str, Any]) -> Any:
    """The value of `x.shape[-1]` and the like; UNKNOWN if the argument is absent, None or unknown.

    Arguments may be tensors, or anything with shape, ndim and dtype (a torch.dtype or its name).
    """
    name, _, attribute = text.partition(".")
    value = arguments.get(name, UNKNOWN)
    if value is UNKNOWN or value is None or not attribute:
        return UNKNOWN if value is None else value
    if not hasattr(value, "shape"):
        return UNKNOWN
    if attribute == "dtype":
        dtype = value.dtype
        return dtype.removeprefix("torch.") if isinstance(dtype, str) else _DTYPES.get(dtype, dtype)
    if attribute == "ndim":
        return len(value.shape)
    index = int(attribute[len("shape[") : -1])
    shape = value.shape
    return shape[index] if -len(shape) <= index < len(shape) else UNKNOWN


@dataclass(frozen=True)
class Broken:
    """A limit that a call does not keep."""

    limit: Limit
    value: str

    def __str__(self) -> str:
        return f"{self.limit.of} is {self.value}: {self.limit.why}"


@dataclass(frozen=True)
class Kernel:
    """What is known of the NKI kernel behind one NK function.

    Attributes:
        name: the function's name in NK.
        provider: the package that has the kernel.
        summary: one line: what it computes.
        equation: the same as a formula.
        phases: where a model port uses it: prefill, decode or both.
        limits: what the kernel does not take; outside them the torch reference runs.
        module: the module with the NKI source.
        evidence: how far it is checked; never a statement about speed.
    """

    name: str
    provider: str
    summary: str
    equation: str
    phases: tuple[str, ...]
    limits: tuple[Limit, ...]
    module: str
    evidence: str = "verified in simulation against torch and float64"

    @property
    def title(self) -> str:
        """As a plan shows it, e.g. `neuron_autoport.rms_norm`."""
        return f"{self.provider}.{self.name}"

    def broken(self, arguments: Mapping[str, Any]) -> tuple[Broken, ...]:
        """The limits that `arguments` (by parameter name; what is unknown left out) do not keep."""
        return tuple(
            Broken(limit, value) for limit in self.limits if (value := limit.broken_by(arguments))
        )


KERNELS: dict[str, Kernel] = {}


def broken(name: str, arguments: Mapping[str, Any]) -> tuple[Broken, ...]:
    """The limits of NK.`name` that these arguments do not keep.

    Raises:
        KeyError: no such function.
    """
    return KERNELS[name].broken(arguments)
