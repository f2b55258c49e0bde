"""Two weights packed as halves: their product, and the activation of one times the other, against float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm")
from neuron_autoport.hosts.vllm.packed import build
from neuron_autoport.hosts.vllm.packed.build import Kernel
from tests.hosts.vllm.packing import CAPABLE, distance, numbers

pytestmark = pytest.mark.skipif(not CAPABLE, reason="no CPU of a known level")


@pytest.fixture(scope="module")
def made() -> Kernel:
    return build.kernel()


@settings(max_examples=40, deadline=None)
@given(
    half=st.integers(1, 150),
    inputs=st.sampled_from([1, 3, 64, 127, 2047, 2048, 2049, 4100]),
    rows=st.integers(0, 210),
    biased=st.booleans(),
)
def test_halves_are_the_same_product(
    made: Kernel, half: int, inputs: int, rows: int, biased: bool
) -> None:
    x, weight = numbers(rows, inputs), numbers(2 * half, inputs, seed=1)
    bias = numbers(2 * half, seed=2) if biased else None
    y = made.run_halves(x, made.pack_halves(weight), 2 * half, bias, build.NO_ACT)
    assert y.shape == (rows, 2 * half) and distance(y, x, weight, bias) <= inputs + 1


SIGMOID_OF = {
    build.SILU: lambda x: x,
    build.GELU_TANH: lambda x: math.sqrt(8 / math.pi) * (x + 0.044715 * x**3),
}


@pytest.mark.parametrize("act", SIGMOID_OF)
@settings(max_examples=40, deadline=None)
@given(half=st.integers(1, 100), rows=st.integers(0, 60), biased=st.booleans())
def test_the_first_half_is_activated_and_multiplied_with_the_second(
    made: Kernel, act: int, half: int, rows: int, biased: bool
) -> None:
    x, weight = numbers(rows, 65), numbers(2 * half, 65, seed=1)
    bias = numbers(2 * half, seed=2) if biased else None
    y = made.run_halves(x, made.pack_halves(weight), 2 * half, bias, act)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    gate, up = exact.chunk(2, dim=-1)
    assert y.shape == (rows, half)
    wanted = gate * up / (1 + (-SIGMOID_OF[act](gate)).exp())
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("act", SIGMOID_OF)
def test_an_activation_is_right_to_the_last_places(made: Kernel, act: int) -> None:
    """Against float64 for every thousandth from -200 to 200, in float32's rounding of the exponent of e."""
    gates = torch.arange(-200, 200, 1e-3)
    weight = torch.zeros(64, 2)
    weight[:32, 0] = weight[32:, 1] = 1
    x = torch.stack([gates, torch.full_like(gates, 3.0)], dim=-1)
    y = made.run_halves(x, made.pack_halves(weight), 64, None, act)
    assert torch.equal(y, y[:, :1].expand(-1, 32))
    exponent = SIGMOID_OF[act](gates.double())
    exact = 3 * gates.double() / (1 + (-exponent).exp())
    near = gates.abs() < 8  # further out it is x or nothing
    error = (y[:, 0].double() - exact).abs()
    assert (error <= exact.abs() * 2**-24 * 4 * (2 + exponent.abs()) + 1e-36)[near].all()
    assert (error <= 3 * gates.abs() * 2**-24 * 4)[~near].all()


def test_values_that_are_no_numbers_are_activated_in_their_place(made: Kernel) -> None:
    x, weight = numbers(20, 64), numbers(70, 64, seed=1)
    x[4, 6] = float("nan")
    for act in SIGMOID_OF:
        y = made.run_halves(x, made.pack_halves(weight), 70, None, act)
        assert y[4].isnan().all() and y[[r for r in range(20) if r != 4]].isfinite().all()


@pytest.mark.parametrize(
    ("outputs", "inputs", "act", "message"),
    [(96, 32, 3, "an activation"), (95, 32, 0, "two halves"), (96, 2049, 1, "in one piece")],
)
def test_halves_that_do_not_fit_are_refused(
    made: Kernel, outputs: int, inputs: int, act: int, message: str
) -> None:
    packed = made.pack_halves(numbers(96, inputs))
    with pytest.raises(RuntimeError, match=message):
        made.run_halves(numbers(4, inputs), packed, outputs, None, act)
