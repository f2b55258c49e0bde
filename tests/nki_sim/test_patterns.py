"""Index patterns, masks, selections and searches, element by element in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.nki_sim.namespace import nisa, nl
from tests.nki_sim.single import BF16, close, integers, issue, normal

PATTERN = [[10, 3], [-1, 4]]
FLOAT_MIN = float(np.finfo(np.float32).min)


def affine(partitions: int, offset: int, multiplier: int) -> Any:
    """The affine values of PATTERN, by the loops that define them."""
    values = np.empty((partitions, 12), np.int64)
    for channel in range(partitions):
        for y in range(3):
            for x in range(4):
                values[channel, 4 * y + x] = offset + channel * multiplier + 10 * y - x
    return values


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_iota(dtype: Any) -> None:
    got = issue(
        lambda t: nisa.iota(t["dst"], PATTERN, offset=5, channel_multiplier=-2), ((6, 12), dtype)
    )
    assert (got == affine(6, 5, -2)).all()


@pytest.mark.parametrize("name", ["equal", "not_equal", "greater", "greater_equal", "less"])
def test_affine_select(name: str) -> None:
    x = normal(6, 3, 4, dtype=BF16)
    got = issue(
        lambda t: nisa.affine_select(
            t["dst"], PATTERN, channel_multiplier=-3, on_true_tile=t["x"],
            on_false_value=-7.0, cmp_op=getattr(nl, name), offset=1,
        ),
        ((6, 12), np.float32), x=x,
    )  # fmt: skip
    holds = getattr(np, name)(affine(6, 1, -3), 0)
    assert (got == np.where(holds, x.reshape(6, 12).astype(np.float32), -7.0)).all()


def test_a_causal_mask() -> None:
    x = normal(20, 30)
    got = issue(
        lambda t: nisa.affine_select(
            t["dst"], [[-1, 30]], 1, t["x"], -1e30, cmp_op=nl.greater_equal, offset=10
        ),
        ((20, 30), np.float32), x=x,
    )  # fmt: skip
    for query in range(20):
        for key in range(30):
            assert got[query, key] == (x[query, key] if key <= query + 10 else np.float32(-1e30))


def test_range_select_and_its_maximum() -> None:
    x = normal(9, 16)
    low = integers(9, 1, low=0, high=8, dtype=np.float32)
    high = low + 5
    got = issue(
        lambda t: nisa.range_select(
            t["dst"], t["x"], nl.greater_equal, nl.less, t["low"], t["high"],
            reduce_res=t["top"], range_start=2,
        ),
        {"dst": ((9, 16), np.float32), "top": ((9, 1), np.float32)}, x=x, low=low, high=high,
    )  # fmt: skip
    column = np.arange(16) + 2
    want = np.where((column >= low) & (column < high), x, np.float32(FLOAT_MIN))
    assert (got["dst"] == want).all()
    assert (got["top"][:, 0] == want.max(axis=1)).all()


@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce(reverse: bool) -> None:
    x, other = normal(9, 16), normal(9, 1, seed=1)
    p = integers(9, 16, low=0, high=2, dtype=np.uint8)
    got = issue(
        lambda t: nisa.select_reduce(
            t["dst"], t["p"], t["x"], t["other"], reduce_res=t["top"],
            reduce_cmd=nisa.reduce_cmd.reset_reduce, reverse_pred=reverse,
        ),
        {"dst": ((9, 16), np.float32), "top": ((9, 1), np.float32)}, x=x, p=p, other=other,
    )  # fmt: skip
    want = np.where((p == 0) if reverse else (p != 0), x, other)
    assert (got["dst"] == want).all()
    assert (got["top"][:, 0] == want.max(axis=1)).all()


def test_the_eight_largest_and_where_they_are() -> None:
    x = integers(5, 40, low=0, high=9, dtype=np.float32)  # with many equal values
    x[2] = np.arange(40)

    def action(t: dict[str, Any]) -> None:
        nisa.max8(t["top"], t["x"])
        nisa.nc_find_index8(t["dst"], t["x"], t["top"])

    out = {"dst": ((5, 8), np.uint32), "top": ((5, 8), np.float32)}
    got = issue(action, out, x=x)
    for row in range(5):
        pairs = sorted((-value, at) for at, value in enumerate(x[row].tolist()))
        order = [at for _, at in pairs[:8]]
        assert got["top"][row].tolist() == [x[row, at] for at in order]
        assert got["dst"][row].tolist() == order


def test_a_value_that_is_not_there() -> None:
    x = np.tile(np.arange(10, dtype=np.float32), (2, 1))
    vals = np.tile(np.array([3, 99, 3, 0, 1, 2, 9, 8], np.float32), (2, 1))
    got = issue(
        lambda t: nisa.nc_find_index8(t["dst"], t["x"], t["v"]), ((2, 8), np.uint16), x=x, v=vals
    )
    assert got[0].tolist() == [3, 0xFFFF, 0xFFFF, 0, 1, 2, 9, 8]


def test_replacing_matches_from_the_last_value_on() -> None:
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    got = issue(
        lambda t: nisa.nc_match_replace8(t["dst"], t["d"], t["v"], -1.0, dst_idx=t["idx"]),
        {"dst": ((1, 11), np.float32), "idx": ((1, 8), np.uint32)}, d=data, v=vals,
    )  # fmt: skip
    # The documented example of the tie-break.
    assert got["idx"][0].tolist() == [2, 10, 9, 8, 7, 6, 5, 4]
    assert got["dst"][0].tolist() == [1, 2, -1, 4, -1, -1, -1, -1, -1, -1, -1]


def test_identity_matrix() -> None:
    x = normal(5, 5)

    def action(t: dict[str, Any]) -> None:
        identity = nl.shared_identity_matrix(5, dtype=nl.float32)
        nisa.nc_matmul(t["dst"], identity, t["x"], accumulate=False)

    close(issue(action, ((5, 5), np.float32), psum=("dst",), x=x), x, ulps=0)
