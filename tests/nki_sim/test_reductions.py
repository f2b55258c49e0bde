"""Reductions, activation sums, scans and batch statistics against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.nki_sim.namespace import nisa, nl
from tests.nki_sim.single import BF16, Array, Tiles, close, integers, issue, normal

RESET, GO_ON = "reset_reduce", "reduce"


def command(name: str) -> Any:
    return getattr(nisa.reduce_cmd, name)


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("axis", [3, (3,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize(
    ("name", "formula"),
    [("add", np.sum), ("maximum", np.max), ("minimum", np.min), ("multiply", np.prod)],
)
def test_tensor_reduce(name: str, formula: Any, axis: Any, negate: bool) -> None:
    x = normal(6, 3, 4, 5)
    axes = (axis,) if isinstance(axis, int) else axis
    want = formula(x.astype(np.float64), axis=axes)
    shape = want.shape if want.ndim > 1 else (6, 1)
    got = issue(
        lambda t: nisa.tensor_reduce(
            t["dst"], op=getattr(nl, name), data=t["x"], axis=axis, negate=negate
        ),
        (shape, np.float32), x=x,
    )  # fmt: skip
    close(got, (-want if negate else want).reshape(shape), ulps=16)


def row_reduce(name: str) -> Callable[[Tiles], Any]:
    """tensor_reduce of the rows of x with the operator `name`."""
    return lambda t: nisa.tensor_reduce(t["dst"], op=getattr(nl, name), data=t["x"], axis=1)


def test_reducing_truths_and_bits() -> None:
    x = integers(5, 6, low=0, high=3, dtype=np.uint8)
    for name, want in {
        "bitwise_or": np.bitwise_or.reduce(x, axis=1),
        "bitwise_xor": np.bitwise_xor.reduce(x, axis=1),
        "logical_and": (x != 0).all(axis=1),
        "logical_or": (x != 0).any(axis=1),
    }.items():
        got = issue(row_reduce(name), ((5, 1), np.uint8), x=x)
        assert (got[:, 0] == want).all(), name


def test_the_sums_of_activation_outlast_an_instruction() -> None:
    x = normal(9, 40, dtype=BF16)

    def action(t: Tiles) -> None:
        for start, name, result in ((0, RESET, None), (16, GO_ON, None), (32, GO_ON, t["sum"])):
            end = min(start + 16, 40)
            nisa.activation(
                t["dst"][:, start:end], nl.square, t["x"][:, start:end],
                reduce_op=nl.add, reduce_res=result, reduce_cmd=command(name),
            )  # fmt: skip

    got = issue(action, {"dst": ((9, 40), np.float32), "sum": ((9, 1), np.float32)}, x=x)
    squares = x.astype(np.float64) ** 2
    close(got["dst"], squares, ulps=0.6)
    close(got["sum"], squares.sum(axis=1, keepdims=True), ulps=16)


def test_activation_reduce_and_a_sum_that_overwrites_the_result() -> None:
    x = normal(4, 12)
    got = issue(
        lambda t: nisa.activation_reduce(t["dst"], nl.exp, t["x"], nl.add, t["sum"], scale=0.5),
        {"dst": ((4, 12), np.float32), "sum": ((4, 1), np.float32)}, x=x,
    )  # fmt: skip
    want = np.exp(x.astype(np.float64) * 0.5)
    close(got["dst"], want)
    close(got["sum"], want.sum(axis=1, keepdims=True), ulps=8)
    one = normal(4, 1)
    alias = issue(
        lambda t: nisa.activation_reduce(t["dst"], nl.square, t["x"], nl.add, t["dst"]),
        ((4, 1), np.float32), x=one,
    )  # fmt: skip
    close(alias, one.astype(np.float64) ** 2)


@pytest.mark.parametrize(
    ("name", "formula"),
    [("add", np.sum), ("multiply", np.prod), ("maximum", np.max), ("minimum", np.min)],
)
def test_tensor_scalar_reduce_goes_on_and_starts_from_a_value(name: str, formula: Any) -> None:
    x, start = normal(5, 10), normal(5, 1, seed=1)
    operator = getattr(nl, name)

    def action(t: Tiles) -> None:
        nisa.tensor_scalar_reduce(
            t["dst"][:, 0:4], t["x"][:, 0:4], nl.add, 0.5, operator, None,
            reduce_cmd=command("load_reduce"), reduce_init=t["start"],
        )  # fmt: skip
        nisa.tensor_scalar_reduce(
            t["dst"][:, 4:10], t["x"][:, 4:10], nl.add, 0.5, operator, t["all"],
            reduce_cmd=command(GO_ON),
        )  # fmt: skip

    out = {"dst": ((5, 10), np.float32), "all": ((5, 1), np.float32)}
    got = issue(action, out, x=x, start=start)
    shifted = x.astype(np.float64) + 0.5
    close(got["dst"], shifted)
    everything = np.concatenate([start.astype(np.float64), shifted], axis=1)
    close(got["all"], formula(everything, axis=1, keepdims=True), ulps=16)


def test_scan() -> None:
    a, b = np.abs(normal(6, 15)) * 0.5, normal(6, 15, seed=1)
    got = issue(
        lambda t: nisa.tensor_tensor_scan(t["dst"], t["a"], t["b"], 0.25, nl.multiply, nl.add),
        ((6, 15), np.float32), a=a, b=b,
    )  # fmt: skip
    state, want = np.full(6, 0.25), np.empty((6, 15))
    for at in range(15):
        state = a[:, at] * state + b[:, at]
        want[:, at] = state
    close(got, want, ulps=8)


def test_statistics_of_wide_rows() -> None:
    x = normal(8, 1024, scale=3.0) + 1
    out = {"dst": ((8, 2), np.float32), "groups": ((8, 12), np.float32)}
    got = issue(_groups, out, x=x)
    rows: Array = x.astype(np.float64)
    close(got["dst"], np.stack([rows.mean(axis=1), rows.var(axis=1)], axis=1), ulps=32)


def _groups(t: Tiles) -> None:
    for group in range(2):
        part = t["x"][:, 512 * group : 512 * (group + 1)]
        nisa.bn_stats(t["groups"][:, 6 * group : 6 * group + 6], part)
    nisa.bn_aggr(t["dst"], t["groups"])


def test_statistics_of_an_odd_row() -> None:
    x = normal(3, 7)
    got = issue(lambda t: nisa.bn_stats(t["dst"], t["x"]), ((3, 6), np.float32), x=x)
    wide = x.astype(np.float64)
    for first, half in ((0, wide[:, 0::2]), (3, wide[:, 1::2])):
        assert (got[:, first] == half.shape[1]).all()
        close(got[:, first + 1], half.mean(axis=1), ulps=4)
        close(got[:, first + 2], half.var(axis=1) * half.shape[1], ulps=8)
