"""`nl.add`, `nl.exp` and the like: tokens that name what an engine computes, with its formula.

Functions are computed in float64 and rounded to float32; the device uses polynomial fits, whose last bits
differ. Outside a function's range of inputs the device gives no valid result: an error here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.nki_sim.dtypes import F32, Array
from tests.nki_sim.errors import demand, refuse


@dataclass(frozen=True, eq=False)
class Operator:
    """One token.

    Attributes:
        name: as in nl.
        formula: on arrays.
        kinds: binary, bit (integers only), compare, unary (of the Vector engine), function (of the
            Scalar engine).
        reduction: what combines a row, for operators that may reduce.
        low, high: magnitudes between which the Scalar engine's function is valid, both sides of 0
            if `signed`, else plain bounds.
    """

    name: str
    formula: Callable[..., Any]
    kinds: frozenset[str]
    reduction: np.ufunc | None = None
    low: float = -math.inf
    high: float = math.inf
    signed: bool = False

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse("not-simulated", f"nl.{self.name}(...) as a function on tiles; use nisa")

    @property
    def bitwise(self) -> bool:
        return "bit" in self.kinds

    def apply(self, *values: Any) -> Array:
        """The formula on arrays; truths become 1.0 and 0.0."""
        with np.errstate(all="ignore"):
            out = np.asarray(self.formula(*values))
        return out.astype(F32) if out.dtype == np.bool_ else out

    def activate(self, values: Array) -> Array:
        """The function of the Scalar engine, float32 to float32."""
        size = np.abs(values) if self.signed else values
        outside = (size < self.low) | (size > self.high)
        if outside.any():
            sides = "in magnitude " if self.signed else ""
            refuse(
                "function-domain",
                f"{self} of {values[outside][0]}; valid {sides}from {self.low} to {self.high}",
            )
        return self.apply(values.astype(np.float64)).astype(F32)

    def reduce(self, values: Array, axes: tuple[int, ...]) -> Array:
        """The values of `axes` combined, those axes kept with size 1."""
        assert self.reduction is not None
        if self.reduction in (np.logical_and, np.logical_or, np.logical_xor):
            values = values != 0
        for axis in sorted(axes, reverse=True):
            values = self.reduction.reduce(values, axis=axis, keepdims=True, dtype=values.dtype)
        return values.astype(F32) if values.dtype == np.bool_ else values


def operator_of(value: Any, kind: str, instruction: str) -> Operator:
    """`value` if it is an operator of this kind, or may reduce for kind `reduce`."""
    demand(isinstance(value, Operator), "operator", f"{value!r} in {instruction}")
    fits = value.reduction is not None if kind == "reduce" else kind in value.kinds
    demand(fits, "operator", f"{value} as {kind} operator in {instruction}")
    assert isinstance(value, Operator)
    return value


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    found: Array = torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy()
    return found


def _softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _silu_dx(x: Array) -> Array:
    return _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))


def _truth(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(np.not_equal(a, 0), np.not_equal(b, 0))


OPERATORS: dict[str, Operator] = {}


def _add(kinds: str, **formulas: Any) -> None:
    for name, formula in formulas.items():
        OPERATORS[name] = Operator(name, formula, frozenset(kinds.split()))


def _reducing(kinds: str, **ufuncs: np.ufunc) -> None:
    for name, ufunc in ufuncs.items():
        formula = _truth(ufunc) if name.startswith("logical") else ufunc
        OPERATORS[name] = Operator(name, formula, frozenset(kinds.split()), ufunc)


def _ranged(kinds: str, name: str, formula: Any, low: float, high: float, signed: bool) -> None:
    OPERATORS[name] = Operator(name, formula, frozenset(kinds.split()), None, low, high, signed)


_reducing("binary", add=np.add, subtract=np.subtract, multiply=np.multiply)
_reducing("binary", maximum=np.maximum, minimum=np.minimum)
_reducing("binary", logical_and=np.logical_and, logical_or=np.logical_or)
_reducing("binary", logical_xor=np.logical_xor)
_reducing("bit binary", bitwise_and=np.bitwise_and, bitwise_or=np.bitwise_or)
_reducing("bit binary", bitwise_xor=np.bitwise_xor)
_add("bit binary", left_shift=np.left_shift, right_shift=np.right_shift)
_add("bit unary", invert=np.invert)
_add("binary", power=np.power, abs_max=lambda a, b: np.maximum(np.abs(a), np.abs(b)))
_add("binary", abs_min=lambda a, b: np.minimum(np.abs(a), np.abs(b)))
_add("binary compare", equal=np.equal, not_equal=np.not_equal, greater=np.greater, less=np.less)
_add("binary compare", greater_equal=np.greater_equal, less_equal=np.less_equal)
_add("unary function", abs=np.abs, square=np.square, relu=lambda x: np.maximum(x, 0))
_add("function", copy=lambda x: x, sign=np.sign, sigmoid=_sigmoid, tanh=np.tanh, exp=np.exp)
_add("function", erf=_erf, softplus=_softplus, silu=lambda x: x * _sigmoid(x), silu_dx=_silu_dx)
_add("function", mish=lambda x: x * np.tanh(_softplus(x)), gelu=_gelu)
_add("function", gelu_apprx_tanh=_gelu_tanh, gelu_apprx_sigmoid=lambda x: x * _sigmoid(1.702 * x))
# The valid ranges of the Scalar engine's table.
_ranged("function", "log", np.log, 2.0**-64, 2.0**64, False)
_ranged("function", "sqrt", np.sqrt, 2.0**-116, 2.0**118, False)
_ranged("unary function", "rsqrt", lambda x: 1 / np.sqrt(x), 2.0**-87, 2.0**97, False)
_ranged("unary function", "reciprocal", np.reciprocal, 2.0**-42, 2.0**42, True)
_ranged("function", "sin", np.sin, -math.pi, math.pi, False)
_ranged("function", "arctan", np.arctan, -math.pi / 2, math.pi / 2, False)
