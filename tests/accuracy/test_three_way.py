"""The plugin's rule: what passes, what fails, what is called rounding, and the message of the assertion."""

from __future__ import annotations

import pytest
import torch

from neuron_autoport.accuracy import Verdict, assert_close_three_way, first_bad, three_way

BF16 = torch.bfloat16


def noise(seed: int, size: float) -> torch.Tensor:
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(seed)) * size


@pytest.fixture
def truth() -> torch.Tensor:
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(9)) * 3


@pytest.mark.parametrize(
    ("size", "verdict"),
    [(0.5, Verdict.rounding), (1.0, Verdict.rounding), (1.15, Verdict.rounding),
     (1.35, Verdict.failed), (3.1, Verdict.failed)],
)  # fmt: skip
def test_errors_of_a_size(truth: torch.Tensor, size: float, verdict: Verdict) -> None:
    found = three_way(truth, truth + noise(1, 0.01), truth + noise(2, 0.01 * size))
    assert found.verdict is verdict, found.why()
    assert found.r == pytest.approx(size, rel=0.05)
    assert found.l2_ratio == pytest.approx(size, rel=0.05)


def test_an_error_beyond_the_warning_line_that_passes(truth: torch.Tensor) -> None:
    """A few elements err more: the distribution is the same, R is not."""
    own, mine = noise(1, 0.01), noise(2, 0.01)
    mine[:2] *= 5.2
    found = three_way(truth, truth + own, truth + mine)
    assert found.coefficient >= 0.985 and found.r > 1.2
    assert found.verdict in (Verdict.warn, Verdict.failed)
    mine = noise(2, 0.01)
    mine[:1] *= 4.6
    own[0, 0] = 0.05
    found = three_way(truth, truth + own, truth + mine)
    assert found.passed and found.verdict is (Verdict.warn if found.r > 1.2 else Verdict.rounding)


def test_linf_is_of_the_worst_tensor(truth: torch.Tensor) -> None:
    good = (truth, truth + noise(1, 0.01), truth + noise(2, 0.01))
    spoilt = good[2].clone()
    spoilt[7, 9] = truth[7, 9] + 1.0
    found = three_way(*([good[i], good[i]] for i in range(2)), [good[2], spoilt])
    assert found.coefficient >= 0.99 and found.linf_ratio > 5 and found.l2_ratio < 3
    assert not found.passed and found.broken() == ["L∞ ratio ≥ 5"]


def test_rounding_floor_and_equality(truth: torch.Tensor) -> None:
    low = truth.bfloat16()
    assert three_way(truth, low, low).verdict is Verdict.same
    # The reference is exact in float32; a few units in the last place are no error.
    near = truth * (1 + 2.0**-23)
    found = three_way(truth.double(), truth, near)
    assert found.passed and found.floor and found.verdict is Verdict.rounding
    far = three_way(truth.double(), truth, truth * (1 + 2.0**-18))
    assert not far.passed and far.r == float("inf")


def test_structure_dtype_and_finiteness(truth: torch.Tensor) -> None:
    low = truth.bfloat16()
    hole = low.clone()
    hole[3, 3] = float("nan")
    for actual in (hole, low[:2], low.float(), (low, low), None):
        found = three_way(truth, low, actual)
        assert not found.passed and found.verdict is Verdict.failed and found.why()
    both = truth.clone()
    both[3, 3] = float("nan")
    assert three_way(both, hole, hole).passed


def test_the_assertion(truth: torch.Tensor) -> None:
    low = truth.bfloat16()
    assert assert_close_three_way(truth, low, low).verdict is Verdict.same
    wrong = low.clone()
    wrong[5, 6] = wrong[5, 6] + 2
    with pytest.raises(
        AssertionError, match=r"mlp: .*L∞ ratio ≥ 5, L2 ratio ≥ 3\n.*first bad element \[5, 6\]"
    ) as caught:
        assert_close_three_way(truth, low, wrong, name="mlp")
    assert "units in the last place" in str(caught.value)
    assert "1 of 8192 elements" in str(caught.value)
    assert assert_close_three_way(truth, low, wrong, max_linf_ratio=1e6, max_l2_ratio=1e6).passed


def test_first_bad_element_by_hand() -> None:
    truth = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    own = torch.tensor([[1.0, 2.0], [4.0, 8.0625]]).bfloat16()
    mine = torch.tensor([[1.0, 2.5], [5.0, 8.0]]).bfloat16()
    bad = first_bad(truth, own, mine)
    assert bad is not None and bad.index == (0, 1) and bad.over == 2
    assert (bad.baseline, bad.expected, bad.actual) == (2.0, 2.0, 2.5)
    assert bad.ulps == 32  # between 2 and 4 bfloat16 has steps of 2**-6
    assert (bad.actual_error, bad.expected_error) == (0.5, 0.0)
    assert first_bad(truth, own, truth.bfloat16()) is None
