"""The kernel for packed weights: its values against float64, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("vllm")
from neuron_autoport.hosts.vllm.packed import build
from neuron_autoport.hosts.vllm.packed.build import Kernel
from neuron_autoport.hosts.vllm.packed.layers import fits
from tests.hosts.vllm.packing import CAPABLE, distance, numbers

pytestmark = pytest.mark.skipif(not CAPABLE, reason="no CPU of a known level")


@pytest.fixture(scope="module")
def made() -> Kernel:
    return build.kernel()


@settings(max_examples=60, deadline=None)
@given(
    outputs=st.integers(1, 300),
    inputs=st.sampled_from([1, 3, 4, 5, 64, 127, 2047, 2048, 2049, 4100]),
    rows=st.integers(0, 210),
    biased=st.booleans(),
)
def test_it_is_x_times_w_transposed(
    made: Kernel, outputs: int, inputs: int, rows: int, biased: bool
) -> None:
    x, weight = numbers(rows, inputs), numbers(outputs, inputs, seed=1)
    bias = numbers(outputs, seed=2) if biased else None
    y = made.run(x, made.pack(weight), outputs, bias)
    assert y.shape == (rows, outputs) and y.dtype == torch.float32
    assert distance(y, x, weight, bias) <= inputs + 1


def test_a_sum_of_ones_is_counted_exactly(made: Kernel) -> None:
    """A term left out or taken twice, at any border of pieces, panels and groups of rows, changes a whole number."""
    for rows in range(1, 40):
        for inputs in (1, 2047, 2048, 2050, 4097):
            y = made.run(torch.ones(rows, inputs), made.pack(torch.ones(130, inputs)), 130, None)
            assert (y == inputs).all(), (rows, inputs)


def test_a_row_does_not_depend_on_the_rows_beside_it(made: Kernel) -> None:
    x, weight = numbers(200, 577), numbers(96, 577, seed=1)
    packed = made.pack(weight)
    whole = made.run(x, packed, 96, None)
    for rows in (1, 2, 7, 12, 13, 16, 17, 24, 97):
        assert torch.equal(made.run(x[:rows], packed, 96, None), whole[:rows]), rows


def test_axes_before_the_last_and_strides_do_not_matter(made: Kernel) -> None:
    x, weight = numbers(2, 5, 3, 40), numbers(64, 40, seed=1)
    packed = made.pack(weight)
    y = made.run(x, packed, 64, None)
    assert y.shape == (2, 5, 3, 64) and distance(y, x, weight) <= 41
    for other in (x.transpose(0, 1), numbers(4, 80)[:, ::2], numbers(40, 6).t()):
        assert torch.equal(
            made.run(other, packed, 64, None), made.run(other.contiguous(), packed, 64, None)
        )


def test_infinite_and_undefined_values_stay_in_their_row(made: Kernel) -> None:
    x, weight = numbers(20, 64), numbers(70, 64, seed=1)
    x[3, 5], x[4, 6] = float("inf"), float("nan")
    y = made.run(x, made.pack(weight), 70, None)
    plain = [r for r in range(20) if r not in (3, 4)]
    assert y[plain].isfinite().all() and y[4].isnan().all() and not y[3].isfinite().any()


def test_two_threads_give_what_one_gives(made: Kernel) -> None:
    x, packed = numbers(30, 512), made.pack(numbers(1000, 512, seed=1))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = made.run(x, packed, 1000, None)
        torch.set_num_threads(2)
        assert torch.equal(made.run(x, packed, 1000, None), alone)
    finally:
        torch.set_num_threads(threads)


def test_the_compiler_sees_the_shape_and_keeps_it_a_variable(made: Kernel) -> None:
    weight = numbers(96, 32)
    packed = made.pack(weight)

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def twice(x: Tensor) -> Tensor:
        return made.run(x * 2, packed, 96, None)

    for rows in (3, 5, 9):
        assert torch.equal(
            twice(numbers(rows, 32)), made.run(numbers(rows, 32) * 2, packed, 96, None)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, p: (x[:, :-1], p, 96, None), "as many inputs"),
        (lambda x, p: (x, p[:-1], 96, None), "no handle"),
        (lambda x, p: (x, p.float(), 96, None), "no handle"),
        (lambda x, p: (x, torch.stack([p, p], dim=1)[:, 0], 96, None), "no handle"),
        (lambda x, p: (x, p + 1, 96, None), "packed in this process"),
        (lambda x, p: (x, p, 400, None), "as many outputs"),
        (lambda x, p: (x, p, 96, torch.zeros(95)), "one bias"),
        (lambda x, p: (x, p, 96, torch.zeros(192)[::2]), "one bias"),
        (lambda x, p: (x.double(), p, 96, None), "float32"),
        (lambda x, p: (x, p, 96, torch.zeros(96).double()), "float32"),
    ],
)
def test_what_does_not_fit_is_refused(
    made: Kernel, change: Callable[[Tensor, Tensor], tuple[object, ...]], message: str
) -> None:
    packed = made.pack(numbers(96, 32))
    with pytest.raises(RuntimeError, match=message):
        made.run(*change(numbers(4, 32), packed))  # type: ignore[arg-type]


def test_a_weight_of_the_other_packing_is_refused(made: Kernel) -> None:
    weight = numbers(96, 32)
    with pytest.raises(RuntimeError, match="another packing"):
        made.run(numbers(4, 32), made.pack_halves(weight), 96, None)
    with pytest.raises(RuntimeError, match="another packing"):
        made.run_halves(numbers(4, 32), made.pack(weight), 96, None, build.NO_ACT)


@pytest.mark.parametrize("weight", [torch.zeros(96, 4).double(), torch.zeros(96)])
def test_what_is_no_weight_is_not_packed(made: Kernel, weight: Tensor) -> None:
    with pytest.raises(RuntimeError, match="in float32"):
        made.pack(weight)


def test_a_handle_of_another_process_is_none(made: Kernel) -> None:
    """As in compiled code that was kept, if it held one: the address in it would be somebody else's memory."""
    code = (
        "from neuron_autoport.hosts.vllm.packed import build; import torch;"
        "print(build.kernel().pack(torch.zeros(96, 32)).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    other = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    with pytest.raises(RuntimeError, match="packed in this process"):
        made.run(numbers(4, 32), other, 96, None)


def test_its_memory_lives_as_long_as_its_handle(made: Kernel) -> None:
    weight, x = numbers(96, 320), numbers(4, 320)
    packed = made.pack(weight)
    before = made.run(x, packed, 96, None)
    others = [made.pack(numbers(96, 320, seed=i)) for i in range(50)]
    assert torch.equal(made.run(x, packed, 96, None), before) and len(others) == 50


def test_only_weights_the_kernel_is_made_for_are_packed(made: Kernel) -> None:
    wide = 2 * made.level.panel
    assert fits(torch.zeros(wide, 8), made)
    assert not fits(torch.zeros(wide - 1, 8), made)  # a router of a few experts
    assert not fits(torch.zeros(wide, 8, dtype=torch.bfloat16), made)
    assert not fits(torch.zeros(2, wide, 8), made)
    assert not fits(torch.zeros(wide, 8, device="meta"), made)
    assert not fits(torch.zeros(wide, 0), made)
