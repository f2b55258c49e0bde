"""Requests that run alone: which way is chosen, and what each request keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import ModelOutput

from neuron_autoport.hosts.vllm import alone
from neuron_autoport.hosts.vllm.alone import Alone, Requests
from neuron_autoport.hosts.vllm.alone_proof import choose, prove_alone
from neuron_autoport.hosts.vllm.compat import Refused
from neuron_autoport.hosts.vllm.reading import read_model
from neuron_autoport.models.source import source_of_config
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.pipeline import proved_port

TABLE = torch.arange(1.0, 41.0).view(20, 2) % 7
ASKED = [
    torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]]),
    torch.tensor([[2, 7, 1, 8, 2, 8, 1, 8, 2]]),
]


@dataclass
class Out(ModelOutput):
    last_hidden_state: Any = None
    state: Any = None


class Sums(nn.Module):
    """Row t is the sum of the embeddings up to t; the state is the last row."""

    def forward(
        self, input_ids: Any, state: Any = None, use_cache: bool = False, return_dict: bool = True
    ) -> Any:
        rows = TABLE[input_ids].cumsum(1) + (0 if state is None else state)
        return Out(rows, rows[:, -1:] if use_cache else None)


class GoesOnByOne(Sums):
    """After its first piece it takes one token at a time, as many scans do."""

    def forward(self, input_ids: Any, state: Any = None, **kwargs: Any) -> Any:
        if state is None or input_ids.shape[1] == 1:
            return super().forward(input_ids, state, **kwargs)
        out = super().forward(input_ids, state, **kwargs)
        return Out(out.last_hidden_state, TABLE[input_ids[:, -1:]] + state)


class HoldsItself(Sums):
    """The state is the module's: of whichever request came last."""

    held: Any = None

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        fresh = not use_cache or input_ids.shape[1] > 3
        out = super().forward(input_ids, None if fresh else self.held, use_cache=True)
        self.held = out.state
        return Out(out.last_hidden_state)


class LooksAhead(nn.Module):
    """Every row is the sum of all tokens, so an earlier row changes when a token comes."""

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        rows = TABLE[input_ids]
        return Out(rows.sum(1, keepdim=True) + 0 * rows)


class ByChance(Sums):
    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        out = super().forward(input_ids, **kwargs)
        return Out(out.last_hidden_state * torch.rand(()), out.state)


class BySeed(Sums):
    """Random numbers, but the same at every run."""

    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        out = super().forward(input_ids, **kwargs)
        torch.manual_seed(5)
        return Out(out.last_hidden_state * torch.rand(()), out.state)


class RemembersTheFirst(Sums):
    """The length of the first request it is given is a factor of all."""

    factor: Any = None

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        self.factor = self.factor or input_ids.shape[1]
        return Out(super().forward(input_ids).last_hidden_state * self.factor)


class CountsRuns(Sums):
    runs = 0

    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        self.runs += 1
        return Out(super().forward(input_ids).last_hidden_state * self.runs)


class Fails(nn.Module):
    def forward(self, input_ids: Any, use_cache: bool = False, return_dict: bool = True) -> Any:
        raise ValueError("no ids of this kind\nat all")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Sums, Alone("why", several=True)),
        (GoesOnByOne, Alone("why", several=False)),
        (HoldsItself, Alone("why", several=True, again=True)),
        (LooksAhead, Alone("why", several=True, again=True)),
        (BySeed, Alone("why", several=True, again=True)),
    ],
)
def test_the_way_that_gives_the_rows_of_the_whole_is_chosen(model: Any, expected: Alone) -> None:
    assert choose("why", model(), model(), ASKED) == expected


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ByChance, rf"two runs .* in transformers too: random numbers .* at {__name__}:\d+"),
        (RemembersTheFirst, "what it gives depends on what it was given before, .* off by 3.1e-01"),
        (CountsRuns, "two runs .* in transformers too: it keeps something of a run"),
        (Fails, "no ids of this kind"),
    ],
)
def test_what_no_way_gives_is_not_chosen(model: Any, said: str) -> None:
    found = choose("why", model(), model(), ASKED)
    assert isinstance(found, str)
    assert re.fullmatch(said, found)


def test_the_rewritten_model_is_blamed_where_the_original_is_right() -> None:
    found = choose("why", Sums(), ByChance(), ASKED)
    assert isinstance(found, str) and found.startswith("its rows are off by")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, r"random numbers are drawn at transformers\.models\.reformer\.modeling_reformer:\d+"),
        ({"hash_seed": 3}, "depends on what it was given before"),
        ({"hash_seed": 3, "num_buckets": 4}, None),
    ],
)
def test_hashes_drawn_by_chance(changes: dict[str, int], said: str | None) -> None:
    """Buckets that are not given are counted for the first request and kept."""
    config = tiny_config(CONFIG_MAPPING["reformer"](is_decoder=True))
    config.update(changes)
    source = source_of_config(config, "reformer")
    if said is None:
        found = read_model(source).alone
        assert found is not None and found.again
        return
    with pytest.raises(Refused, match=said) as caught:
        read_model(source)
    assert caught.value.code == "AP411"


def test_a_rewrite_that_loses_the_cache_is_read_again() -> None:
    class Loses(Sums):
        def forward(self, input_ids: Any, state: Any = None, **kwargs: Any) -> Any:
            return super().forward(input_ids, None, **kwargs)

    assert choose("why", Sums(), Loses(), ASKED) == Alone("why", several=True, again=True)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("rwkv", Alone("", several=True, plain=True)),
        ("deepseek_v32", Alone("", several=True)),
        ("minimax", Alone("", several=True)),
        ("doge", Alone("", several=True, again=True)),
    ],
)
def test_models_that_vllm_has_no_cache_for(model_type: str, expected: Alone) -> None:
    source = source_of_config(tiny_config(CONFIG_MAPPING[model_type]()), model_type)
    found = read_model(source).alone
    assert found is not None
    assert len(found.reason) > 30
    assert replace(found, reason="") == expected


def test_a_model_of_vllms_caches_does_not_run_alone() -> None:
    source = source_of_config(tiny_config(CONFIG_MAPPING["llama"]()), "llama")
    assert read_model(source).alone is None


def test_hashes_drawn_anew_at_every_run_are_refused() -> None:
    config = CONFIG_MAPPING["reformer"](is_decoder=True)
    source = source_of_config(tiny_config(config), "reformer")
    why = Refused("AP411", "it looks back by itself", "reformer")
    with pytest.raises(
        Refused, match="it looks back by itself; nor does it run with one request"
    ) as e:
        prove_alone(source, proved_port(source), why)
    assert e.value.code == "AP411"


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


class Halves(Sums):
    """Its weight is one half of what was loaded, from the first run on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([4.0, 4.0]), requires_grad=False)
        self.buffer = torch.zeros(2)
        self.ready = False

    def halve(self) -> None:
        self.weight.div_(2)

    def forward(self, input_ids: Any, state: Any = None, **kwargs: Any) -> Any:
        if not self.ready:
            self.halve()
        self.ready = True
        out = super().forward(input_ids, state, **kwargs)
        return Out(out.last_hidden_state * self.weight[0] / 2, out.state)


class HalvesData(Halves):
    def halve(self) -> None:
        self.weight.data.mul_(0.5)


class HalvesARow(Halves):
    def halve(self) -> None:
        self.weight[:1] *= 0.5


class HalvesInto(Halves):
    def halve(self) -> None:
        torch.mul(self.weight, 0.5, out=self.weight)


class HalvesACopy(Halves):
    """Not the weight itself: nothing is changed that was loaded."""

    def halve(self) -> None:
        self.buffer.add_(1)
        self.weight.clone().div_(2)
        torch.div(self.weight, 2)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Halves, True),
        (HalvesData, True),
        (HalvesARow, True),
        (HalvesInto, True),
        (HalvesACopy, False),
    ],
)
def test_models_that_change_their_weights_stay_as_they_are(model: Any, expected: bool) -> None:
    """Twice the same model: the original has changed its weight once when the other one is asked."""
    found = choose("why", model(), model(), ASKED)
    assert found == Alone("why", several=True, plain=expected)
