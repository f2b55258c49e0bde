"""Weights that need fewer bytes than float32 has are kept in fewer, and every value comes back bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("vllm")
from neuron_autoport.hosts.vllm.packed import build
from neuron_autoport.hosts.vllm.packed.build import Kernel, bytes_of
from tests.hosts.vllm.packing import CAPABLE, numbers

pytestmark = pytest.mark.skipif(not CAPABLE, reason="no CPU of a known level")


@pytest.fixture(scope="module")
def made() -> Kernel:
    return build.kernel()


def kept(weight: Tensor, mantissa: int) -> Tensor:
    """With so many bits of mantissa, the others zero."""
    dropped = 23 - mantissa
    return (weight.view(torch.int32) >> dropped << dropped).view(torch.float32)


def ldexp(weight: Tensor, lowest: int, highest: int) -> Tensor:
    """Values of magnitude 2^lowest to 2^highest, both there."""
    exponents = torch.linspace(lowest, highest, weight.numel()).round().reshape(weight.shape)
    fraction = torch.frexp(weight)[0] * 2
    return torch.ldexp(fraction.double(), exponents).float()


PLAIN = numbers(64, 40)
EDGE = torch.tensor([0.0, -0.0, 1.0, -1.0]).repeat(64, 10)

# A weight, and the bytes that one of its values takes at least: sign, exponent, mantissa.
CASES = {
    "zeros": (torch.zeros(64, 40), 2),
    "zeros of both signs": (EDGE, 2),
    "bfloat16": (PLAIN.bfloat16().float(), 2),
    "float16": (PLAIN.half().float(), 2),
    "float8": (PLAIN.to(torch.float8_e4m3fn).float(), 2),
    "float32": (PLAIN, 4),
    "all but one bit of float32": (kept(PLAIN, 22), 4),
    "whole numbers below 2^11": ((PLAIN * 500).round(), 2),
    "blocks of 8 bits with a scale each": (
        (PLAIN * 40).round() * numbers(64, 1, seed=1).half().float(),
        3,
    ),
    "11 bits, exponents 14 apart": (kept(ldexp(PLAIN, -15, -1), 11), 2),
    "11 bits, exponents 15 apart": (kept(ldexp(PLAIN, -16, -1), 11), 3),
    "17 bits, exponents 62 apart": (kept(ldexp(PLAIN, -61, 1), 17), 3),
    "17 bits, exponents 63 apart": (kept(ldexp(PLAIN, -62, 1), 17), 4),
    "15 bits, all exponents": (kept(ldexp(PLAIN, -126, 127), 15), 3),
    "16 bits, all exponents": (kept(ldexp(PLAIN, -126, 127), 16), 4),
    "11 bits of large numbers": (kept(ldexp(PLAIN, 120, 127), 11), 3),
    "11 bits of small numbers": (kept(ldexp(PLAIN, -126, -120), 11), 2),
    "below the smallest exponent": (kept(ldexp(PLAIN, -130, -120), 7), 2),
    "15 bits, from below the smallest exponent": (kept(ldexp(PLAIN, -140, 127), 15), 3),
    "17 bits, from below the smallest exponent": (kept(ldexp(PLAIN, -127, -70), 17), 3),
    "17 bits, from there to 1": (kept(ldexp(PLAIN, -127, 0), 17), 4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("at_once", [1, 11, 40])
def test_every_value_comes_back(made: Kernel, name: str, at_once: int) -> None:
    """Each product of a row of one 1 with a weight is one of its values and sums of nothing."""
    weight, size = CASES[name]
    packed = made.pack(weight)
    assert bytes_of(packed) == size * weight.numel()
    ones = torch.eye(40)
    for start in range(0, 40, at_once):
        y = made.run(ones[start : start + at_once], packed, len(weight), None)
        assert torch.equal(y, weight.t()[start : start + at_once])


@pytest.mark.parametrize(("mantissa", "size"), [(7, 2), (15, 3)])
def test_infinite_and_undefined_values_come_back(made: Kernel, mantissa: int, size: int) -> None:
    weight = kept(numbers(64, 1), mantissa)
    weight[3], weight[4], weight[5] = float("inf"), -float("inf"), float("nan")
    packed = made.pack(weight)
    assert bytes_of(packed) == size * weight.numel()
    y = made.run(torch.ones(20, 1), packed, 64, None)
    torch.testing.assert_close(y, weight.t().expand(20, -1), rtol=0, atol=0, equal_nan=True)


def test_infinite_values_among_few_exponents_are_kept_whole(made: Kernel) -> None:
    """With fewer bits of exponent an infinite value would be read as a finite one."""
    weight = kept(numbers(64, 1), 17)
    weight[3] = float("inf")
    packed = made.pack(weight)
    assert bytes_of(packed) == 4 * weight.numel()
    assert torch.equal(made.run(torch.ones(1, 1), packed, 64, None), weight.t())


@settings(max_examples=80, deadline=None)
@given(
    outputs=st.integers(1, 150),
    inputs=st.sampled_from([1, 3, 5, 64, 127, 2047, 2049, 4100]),
    rows=st.integers(0, 210),
    mantissa=st.integers(0, 17),
    biased=st.booleans(),
    halves=st.booleans(),
)
def test_a_product_is_that_of_the_weight_in_float32(
    made: Kernel, outputs: int, inputs: int, rows: int, mantissa: int, biased: bool, halves: bool
) -> None:
    """Bit for bit: beside rows that need all of float32 the same rows are kept in 4 bytes."""
    outputs *= 2
    x, weight = numbers(rows, inputs), kept(numbers(outputs, inputs, seed=1), mantissa)
    bias = numbers(2 * outputs, seed=2) if biased else None
    full = 1 + numbers(outputs, inputs, seed=3).abs() * 2**-20
    full[0, 0] = 1 + 2**-23
    if not halves:
        narrow, whole = made.pack(weight), made.pack(torch.cat([weight, full]))
        near = made.run(x, narrow, outputs, None if bias is None else bias[:outputs])
        far = made.run(x, whole, 2 * outputs, bias)[:, :outputs]
    else:
        (a, b), (c, d) = weight.chunk(2), full.chunk(2)
        narrow, whole = made.pack_halves(weight), made.pack_halves(torch.cat([a, c, b, d]))
        both, half = range(2 * outputs), outputs // 2
        picked = [*both[:half], *both[outputs : outputs + half]]
        biased_near = None if bias is None else bias[picked]
        near = made.run_halves(x, narrow, outputs, biased_near, build.NO_ACT)
        far = made.run_halves(x, whole, 2 * outputs, bias, build.NO_ACT)[:, picked]
        if inputs <= build.DEPTH:
            for act in (build.SILU, build.GELU_TANH):
                gated = made.run_halves(x, narrow, outputs, biased_near, act)
                beside = made.run_halves(x, whole, 2 * outputs, bias, act)[:, :half]
                assert torch.equal(gated, beside)
    assert bytes_of(narrow) * 4 <= bytes_of(whole) * 3
    assert torch.equal(near, far)
