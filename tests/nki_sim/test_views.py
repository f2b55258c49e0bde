"""Views against NumPy's: every kind of index, and the methods, on chip and in HBM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.nki_sim.namespace import nisa, nki, nl
from tests.nki_sim.single import BF16, Array, integers

SHAPE = (6, 4, 10)
DATA: Array = integers(*SHAPE, low=-99, high=99, dtype=np.float32)


def seen(view: Any, where: str, dtype: Any = np.float32, data: Array = DATA) -> Array:
    """The values of `view(tensor)`."""

    @nki.jit
    def kernel(x: Any) -> Any:
        source = x
        if where == "sbuf":
            source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=source, src=x)
        found = view(source)
        name = getattr(nl, np.dtype(dtype).name)
        out = nl.ndarray(found.shape, dtype=name, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=found)
        return out

    got: Array = nki.simulate(kernel)(data)
    return got


INDICES: list[Any] = [
    np.s_[...], np.s_[2], np.s_[-1], np.s_[1:4], np.s_[:, 1:3], np.s_[:, :, ::3],
    np.s_[:, 2, 1:9:2], np.s_[0:2, 3, -4:], np.s_[..., 5], np.s_[1:5, ..., 2:4], np.s_[3, 1, 7],
]  # fmt: skip


@pytest.mark.parametrize("key", INDICES, ids=str)
def test_indices_in_hbm(key: Any) -> None:
    want = DATA[key]
    got = seen(lambda t: t[key], "hbm")
    assert got.shape == (want.shape or (1,))
    assert (got == want).all()


@pytest.mark.parametrize("key", INDICES, ids=str)
def test_indices_on_chip_keep_two_axes(key: Any) -> None:
    want = DATA[key]
    got = seen(lambda t: t[key], "sbuf")
    assert got.ndim >= 2
    assert (got.reshape(-1) == want.reshape(-1)).all()
    first = key[0] if isinstance(key, tuple) else key
    rows = 1 if isinstance(first, int) else len(DATA[first if first is not Ellipsis else np.s_[:]])
    assert got.shape[0] == rows


METHODS: dict[str, tuple[Any, Any]] = {
    "ds": (lambda t: t[:, nl.ds(1, 2), :], lambda a: a[:, 1:3]),
    "slice": (lambda t: t.slice(2, 1, 8, 3), lambda a: a[:, :, 1:8:3]),
    "select": (lambda t: t.select(1, 3), lambda a: a[:, 3]),
    "permute": (lambda t: t.permute((0, 2, 1)), lambda a: a.transpose(0, 2, 1)),
    "broadcast": (
        lambda t: t[:, 1:2, :].broadcast(1, 5),
        lambda a: np.broadcast_to(a[:, 1:2], (6, 5, 10)),
    ),
    "expand": (lambda t: t.expand_dim(2), lambda a: a[:, :, None]),
    "squeeze": (lambda t: t.slice(1, 2, 3).squeeze_dim(1), lambda a: a[:, 2]),
    "split": (lambda t: t.reshape_dim(2, (2, -1)), lambda a: a.reshape(6, 4, 2, 5)),
    "flatten": (lambda t: t.flatten_dims(1, 2), lambda a: a.reshape(6, 40)),
    "reshape": (lambda t: t.reshape((6, 8, 5)), lambda a: a.reshape(6, 8, 5)),
    "chain": (
        lambda t: t[2:6, :, :].permute((0, 2, 1))[:, 1:9:2, 1:3].reshape_dim(1, (2, 2)),
        lambda a: a[2:6].transpose(0, 2, 1)[:, 1:9:2, 1:3].reshape(4, 2, 2, 2),
    ),
    "ap": (
        lambda t: t.ap(pattern=[[40, 6], [-1, 3], [10, 2]], offset=7),
        lambda a: a.reshape(6, 40)[:, [[7, 17], [6, 16], [5, 15]]],
    ),
}


@pytest.mark.parametrize("where", ["hbm", "sbuf"])
@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, where: str) -> None:
    view, same = METHODS[name]
    got, want = seen(view, where), same(DATA)
    assert got.shape == want.shape
    assert (got == want).all()


@pytest.mark.parametrize("where", ["hbm", "sbuf"])
def test_bits_as_another_type(where: str) -> None:
    halves = seen(lambda t: t.view(nl.uint16), where, np.uint16)
    assert (halves == DATA.view(np.uint16)).all()
    assert (seen(lambda t: t.view(nl.int32), where, np.int32) == DATA.view(np.int32)).all()
    pairs = DATA.astype(BF16)
    words = seen(lambda t: t.view(nl.uint32), where, np.uint32, pairs)
    assert (words == pairs.view(np.uint32)).all()
    part = seen(
        lambda t: t.ap(pattern=[[80, 6], [2, 40]], offset=1, dtype=nl.bfloat16), where, BF16
    )  # the upper half of a float32 is a bfloat16
    assert (part == DATA.view(BF16).reshape(6, 80)[:, 1::2]).all()


def test_questions_about_a_layout() -> None:
    answers: dict[str, Any] = {}

    def view(t: Any) -> Any:
        half = t[:, 0:2, :]
        answers.update(
            shape=half.shape, strides=half.strides, offset=t[:, 1, :].offset, size=half.size,
            ndim=half.ndim, pattern=half.get_pattern(), dense=t.is_contiguous(),
            half=half.is_contiguous(), turned=t.permute((0, 2, 1)).is_contiguous(),
            rows=t[0:3, :, :].is_contiguous(), indirect=t.is_indirect(), dtype=t.dtype,
        )  # fmt: skip
        return half

    seen(view, "sbuf")
    assert answers == {
        "shape": (6, 2, 10), "strides": (40, 10, 1), "offset": 10, "size": 120, "ndim": 3,
        "pattern": [[40, 6], [10, 2], [1, 10]], "dense": True, "half": True, "turned": False,
        "rows": True, "indirect": False, "dtype": nl.float32,
    }  # fmt: skip
