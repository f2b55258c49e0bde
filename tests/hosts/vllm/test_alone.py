"""Requests that run alone: which way is chosen, and what each request keeps."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.alone import Alone
from neuron_autoport.hosts.vllm.alone_proof import choose, prove_alone
from neuron_autoport.hosts.vllm.compat import Refused
from neuron_autoport.hosts.vllm.reading import read_model
from neuron_autoport.models.source import source_of_config
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.pipeline import proved_port
from tests.hosts.vllm.alone_models import (
    ASKED,
    ByChance,
    BySeed,
    CountsRuns,
    Fails,
    GoesOnByOne,
    Halves,
    HalvesACopy,
    HalvesARow,
    HalvesData,
    HalvesInto,
    HoldsItself,
    LooksAhead,
    RemembersTheFirst,
    Sums,
)


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
        (
            ByChance,
            rf"two runs .* in transformers too: random numbers .* at {ByChance.__module__}:\d+",
        ),
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
