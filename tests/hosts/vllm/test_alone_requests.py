"""What each request that runs alone keeps from step to step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

from neuron_autoport.hosts.vllm import alone
from neuron_autoport.hosts.vllm.alone import Alone, Requests
from tests.hosts.vllm.alone_models import TABLE, Sums


def step(*requests: tuple[int, int, int]) -> Any:
    """Metadata of a step: of each request its block, its tokens in this step, and all its tokens so far."""
    ends = torch.tensor([0, *(tokens for _, tokens, _ in requests)]).cumsum(0)
    own = SimpleNamespace(
        query_start_loc=ends,
        seq_lens=torch.tensor([length for _, _, length in requests]),
        state_indices_tensor=torch.tensor([block for block, _, _ in requests]),
    )
    return SimpleNamespace(attn_metadata={alone.LAYER: own})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    requests = Requests(Alone("why", several=True), at_once=1, longest=16, size=8)

    def go(context: Any, ids: list[int]) -> list[list[float]]:
        monkeypatch.setattr(alone, "get_forward_context", lambda: context)
        return requests.run(Sums(), torch.tensor(ids)).tolist()

    return go


def sums(*ids: int) -> list[list[float]]:
    """By a loop, not by `cumsum`."""
    total, rows = [0.0, 0.0], []
    for i in ids:
        total = [a + float(b) for a, b in zip(total, TABLE[i], strict=True)]
        rows.append(total)
    return rows


def test_every_request_goes_on_from_its_own_cache(run: Any) -> None:
    assert run(step((4, 2, 2), (9, 3, 3)), [3, 1, 2, 7, 1]) == sums(3, 1) + sums(2, 7, 1)
    found = run(step((9, 1, 4), (4, 2, 4)), [8, 4, 1])
    assert found == sums(2, 7, 1, 8)[3:] + sums(3, 1, 4, 1)[2:]


def test_a_block_of_a_request_that_has_ended_starts_anew(run: Any) -> None:
    run(step((4, 2, 2)), [3, 1])
    assert run(step((4, 2, 2)), [5, 9]) == sums(5, 9)


def test_rows_after_the_last_request_are_zeros(run: Any) -> None:
    assert run(step((4, 2, 2)), [3, 1, 0]) == [*sums(3, 1), [0.0, 0.0]]


def test_memory_is_measured_without_requests(run: Any) -> None:
    assert run(SimpleNamespace(attn_metadata=None), [3, 1]) == sums(3, 1)


def test_a_cache_that_is_gone_is_an_error_not_another_answer(run: Any) -> None:
    for block in (4, 5, 6):  # twice as many as run at once are kept
        run(step((block, 1, 1)), [3])
    assert run(step((5, 1, 2)), [1]) == sums(3, 1)[1:]
    with pytest.raises(ValueError, match="gone after 1 tokens"):
        run(step((4, 1, 2)), [1])
