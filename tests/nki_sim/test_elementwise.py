"""Element-wise instructions against NumPy in float64, in float32, bfloat16 and integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.nki_sim.namespace import nisa, nl
from tests.nki_sim.single import BF16, Array, Tiles, close, integers, issue, normal

TYPES = pytest.mark.parametrize("dtype", [np.float32, BF16])
SHAPE = (7, 33)


def wide(values: Array) -> Array:
    return values.astype(np.float64)


BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
    "abs_max": lambda a, b: np.maximum(np.abs(a), np.abs(b)),
    "abs_min": lambda a, b: np.minimum(np.abs(a), np.abs(b)),
}


@TYPES
@pytest.mark.parametrize("name", BINARY)
def test_tensor_tensor(name: str, dtype: Any) -> None:
    a, b = normal(*SHAPE, dtype=dtype), normal(*SHAPE, seed=1, dtype=dtype)
    b[:, ::3] = a[:, ::3]  # equal and zero elements, too
    a[0], b[:, 5] = 0, 0
    got = issue(
        lambda t: nisa.tensor_tensor(t["dst"], t["a"], t["b"], op=getattr(nl, name)),
        (SHAPE, dtype), a=a, b=b,
    )  # fmt: skip
    close(got, np.asarray(BINARY[name](wide(a), wide(b)), np.float64), ulps=0.6)


def test_power_of_tensors() -> None:
    a, b = np.abs(normal(*SHAPE)) + 0.1, normal(*SHAPE, seed=1)
    got = issue(
        lambda t: nisa.tensor_tensor(t["dst"], t["a"], t["b"], op=nl.power),
        (SHAPE, np.float32), a=a, b=b,
    )  # fmt: skip
    close(got, wide(a) ** wide(b), ulps=4)


def test_one_input_may_be_in_psum_and_free_axes_may_differ() -> None:
    a, b = normal(9, 6, 4), normal(9, 24, seed=1)
    got = issue(
        lambda t: nisa.tensor_tensor(t["dst"], t["a"], t["b"], op=nl.add),
        ((9, 3, 8), BF16), psum=("b", "dst"), a=a, b=b,
    )  # fmt: skip
    close(got, (wide(a).reshape(9, 24) + wide(b)).reshape(9, 3, 8), ulps=0.6)


def test_integers_of_32_bits_stay_exact() -> None:
    a = np.full((2, 3), 2**24 + 1, np.int32)
    b = np.arange(6, dtype=np.int32).reshape(2, 3)
    exact = issue(
        lambda t: nisa.tensor_tensor(t["dst"], t["a"], t["b"], op=nl.add),
        ((2, 3), np.int32), a=a, b=b,
    )  # fmt: skip
    assert (exact == a + b).all()
    rounded = issue(
        lambda t: nisa.tensor_tensor(
            t["dst"], t["a"], t["b"], op=nl.add, engine=nisa.engine.vector
        ),
        ((2, 3), np.int32), a=a, b=b,
    )  # fmt: skip
    assert (rounded == (a.astype(np.float32) + b.astype(np.float32)).astype(np.int32)).all()
    assert (rounded != exact).any()


def two_tiles(name: str) -> Callable[[Tiles], Any]:
    """tensor_tensor of a and b with the operator `name`."""
    return lambda t: nisa.tensor_tensor(t["dst"], t["a"], t["b"], op=getattr(nl, name))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32])
def test_bits(dtype: Any) -> None:
    a = integers(4, 9, low=0, high=100, dtype=dtype)
    b = integers(4, 9, low=0, high=7, dtype=dtype, seed=1)
    for name, formula in {
        "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
        "left_shift": np.left_shift, "right_shift": np.right_shift,
    }.items():  # fmt: skip
        got = issue(two_tiles(name), ((4, 9), dtype), a=a, b=b)
        assert (got == formula(a, b)).all(), name


def test_tensor_scalar_with_constants_and_columns() -> None:
    x, c = normal(*SHAPE), normal(SHAPE[0], 1, seed=2)

    def chained(t: dict[str, Any]) -> None:
        nisa.tensor_scalar(t["dst"], t["x"], nl.multiply, t["c"], op1=nl.add, operand1=0.25)

    got = issue(chained, (SHAPE, np.float32), x=x, c=c)
    close(got, wide(x) * wide(c) + 0.25, ulps=1.1)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_reversed_operands(first: bool, second: bool) -> None:
    x, c = normal(*SHAPE), normal(SHAPE[0], 1, seed=2)
    got = issue(
        lambda t: nisa.tensor_scalar(
            t["dst"], t["x"], op0=nl.subtract, operand0=1.5, reverse0=first,
            op1=nl.subtract, operand1=t["c"], reverse1=second,
        ),
        (SHAPE, np.float32), x=x, c=c,
    )  # fmt: skip
    step = 1.5 - wide(x) if first else wide(x) - 1.5
    close(got, wide(c) - step if second else step - wide(c))


@pytest.mark.parametrize(
    ("name", "formula"),
    [("abs", np.abs), ("square", np.square), ("rsqrt", lambda x: 1 / np.sqrt(x)),
     ("relu", lambda x: np.maximum(x, 0)), ("reciprocal", lambda x: 1 / x)],
)  # fmt: skip
def test_unary_operators_of_the_vector_engine(name: str, formula: Any) -> None:
    x = normal(*SHAPE)
    x = np.abs(x) + 0.1 if name == "rsqrt" else x
    got = issue(
        lambda t: nisa.tensor_scalar(t["dst"], t["x"], op0=getattr(nl, name), operand0=0.0),
        (SHAPE, np.float32), x=x,
    )  # fmt: skip
    close(got, formula(wide(x)))


def test_tensor_scalar_on_bits() -> None:
    x = integers(5, 8, low=0, high=256, dtype=np.uint8)
    got = issue(
        lambda t: nisa.tensor_scalar(
            t["dst"], t["x"], nl.bitwise_and, 15, op1=nl.left_shift, operand1=2
        ),
        ((5, 8), np.uint8), x=x,
    )  # fmt: skip
    assert (got == (x & 15) << 2).all()


@TYPES
def test_scalar_tensor_tensor(dtype: Any) -> None:
    x, y = normal(*SHAPE, dtype=dtype), normal(*SHAPE, seed=1, dtype=dtype)
    c = normal(SHAPE[0], 1, seed=2)
    got = issue(
        lambda t: nisa.scalar_tensor_tensor(
            t["dst"], t["x"], nl.multiply, t["c"], nl.subtract, t["y"], reverse1=True
        ),
        (SHAPE, dtype), psum=("x",), x=x, y=y, c=c,
    )  # fmt: skip
    close(got, wide(y) - wide(x) * wide(c), ulps=1.1)


def test_reciprocal() -> None:
    x = normal(*SHAPE)
    got = issue(lambda t: nisa.reciprocal(t["dst"], t["x"]), (SHAPE, np.float32), x=x)
    close(got, 1 / wide(x), ulps=0.6)


def test_memset_and_copies() -> None:
    both = issue(
        lambda t: (nisa.memset(t["dst"], 2.5), nisa.memset(t["whole"], 7)),
        {"dst": (SHAPE, BF16), "whole": ((3, 4), np.int8)},
    )
    assert (both["dst"] == 2.5).all()
    assert (both["whole"] == 7).all()
    x = normal(*SHAPE, scale=100)
    got = issue(lambda t: nisa.tensor_copy(t["dst"], t["x"]), (SHAPE, np.int8), x=x)
    assert (got == np.clip(np.rint(wide(x)), -128, 127)).all()  # nearest, saturating
    bits = np.array([[2**31 - 1, 2**24 + 1]], np.int32)
    same = issue(lambda t: nisa.tensor_copy(t["dst"], t["x"]), ((1, 2), np.int32), x=bits)
    assert (same == bits).all()  # bit for bit between equal types


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("scalar", [False, True])
def test_tensor_copy_predicated(reverse: bool, scalar: bool) -> None:
    x, old = normal(*SHAPE), normal(*SHAPE, seed=1)
    p = integers(*SHAPE, low=0, high=2, dtype=np.uint8)

    def action(t: dict[str, Any]) -> None:
        nisa.tensor_copy(t["dst"], t["old"])
        nisa.tensor_copy_predicated(t["dst"], -1.5 if scalar else t["x"], t["p"], reverse)

    got = issue(action, (SHAPE, np.float32), x=x, old=old, p=p)
    assert (got == np.where((p != 0) != reverse, -1.5 if scalar else x, old)).all()


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x,
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "silu_dx": lambda x: (1 + np.exp(-x) * (1 + x)) / (1 + np.exp(-x)) ** 2,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": np.vectorize(math.erf),
    "gelu": lambda x: x * np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(x),
    "gelu_apprx_tanh": lambda x: x / (1 + np.exp(-1.5957691216057308 * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x / (1 + np.exp(-1.702 * x)),
    "sin": np.sin,
    "arctan": np.arctan,
}
POSITIVE: dict[str, Callable[[Array], Array]] = {
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
}


@TYPES
@pytest.mark.parametrize("name", [*FUNCTIONS, *POSITIVE])
def test_functions_of_the_scalar_engine(name: str, dtype: Any) -> None:
    x = normal(*SHAPE, dtype=dtype)
    scale, bias = normal(SHAPE[0], 1, seed=2), normal(SHAPE[0], 1, seed=3)
    if name in POSITIVE:
        x, scale, bias = np.abs(x), np.abs(scale), np.abs(bias) + np.float32(0.1)
    if name in ("sin", "arctan"):
        x, scale, bias = (x / np.float32(8)).astype(dtype), np.tanh(scale), np.tanh(bias)
    got = issue(
        lambda t: nisa.activation(
            t["dst"], getattr(nl, name), t["x"], bias=t["b"], scale=t["s"]
        ),
        (SHAPE, dtype), x=x, s=scale, b=bias,
    )  # fmt: skip
    inner = (x.astype(np.float32) * scale + bias).astype(np.float64)  # float32 before the function
    close(got, (FUNCTIONS | POSITIVE)[name](inner), ulps=1.0)
