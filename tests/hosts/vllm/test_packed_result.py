"""Large results of the kernel lie in memory that is kept for the next one, and never in memory that somebody holds."""

from __future__ import annotations

import resource

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")
from neuron_autoport.hosts.vllm.packed import build
from neuron_autoport.hosts.vllm.packed.build import Kernel
from tests.hosts.vllm.packing import CAPABLE, numbers

pytestmark = pytest.mark.skipif(not CAPABLE, reason="no CPU of a known level")
LARGE = 1 << 23  # floats of 32 MiB


@pytest.fixture(scope="module")
def made() -> Kernel:
    return build.kernel()


def logits(made: Kernel, rows: int, outputs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A result, and what it should be: sums of one term are exact."""
    x, weight = numbers(rows, 1, seed=seed), numbers(outputs, 1, seed=seed + 1)
    return made.run(x, made.pack(weight), outputs, None), x @ weight.t()


def test_its_memory_is_that_of_the_last_one_if_nobody_holds_that(made: Kernel) -> None:
    first, wanted = logits(made, 32, LARGE // 32)
    place = first.data_ptr()
    assert torch.equal(first, wanted)
    del first
    second, wanted = logits(made, 32, LARGE // 32, seed=5)
    assert second.data_ptr() == place and torch.equal(second, wanted)
    third, other = logits(made, 32, LARGE // 32, seed=9)  # beside it
    assert third.data_ptr() != place
    assert torch.equal(second, wanted) and torch.equal(third, other)


def test_a_part_of_it_holds_it(made: Kernel) -> None:
    whole, wanted = logits(made, 32, LARGE // 32)
    place, row = whole.data_ptr(), whole[3]
    del whole
    other, _ = logits(made, 32, LARGE // 32, seed=5)
    assert other.data_ptr() != place and torch.equal(row, wanted[3])


def test_memory_of_another_size_is_not_taken(made: Kernel) -> None:
    small, _ = logits(made, 32, LARGE // 32)
    del small
    large, wanted = logits(made, 100, LARGE // 32)
    assert torch.equal(large, wanted)
    del large
    small, wanted = logits(made, 32, LARGE // 32)  # a third of what is free
    assert torch.equal(small, wanted)


def test_the_system_clears_no_pages_for_it_again(made: Kernel) -> None:
    """Nothing is timed: a page fault for each 4 KiB was a fifth of the time."""
    x, packed = numbers(32, 1), made.pack(numbers(LARGE // 32, 1))
    made.run(x, packed, LARGE // 32, None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        made.run(x, packed, LARGE // 32, None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 200


def test_very_large_memory_is_given_back(made: Kernel) -> None:
    held = _resident()
    huge, wanted = logits(made, 1024, 100_000)
    assert torch.equal(huge, wanted)
    del huge, wanted
    assert _resident() < held + (200 << 20)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
