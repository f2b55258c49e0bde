"""Layers that count rows for positions: found by tokens that change places, mended in their source, or refused."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.compat import CountsRows
from neuron_autoport.hosts.vllm.mixing import check_rows, read_masks
from neuron_autoport.hosts.vllm.places import Placed, count_positions, step
from neuron_autoport.hosts.vllm.probe import PROBE
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource, source_of_config
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import port_model

IDS = torch.arange(13)[None]


class Scaled(Placed, nn.Module):
    """Queries scaled by where a token stands, as `count` has it; only its attention sees them."""

    def __init__(self, wrapped: bool) -> None:
        super().__init__()
        self.embed, self.wrapped = nn.Embedding(32, 8), wrapped

    def rows(self, tokens: int) -> torch.Tensor:
        rows = torch.arange(tokens)
        return self.step_places(rows) if self.wrapped else rows

    def count(self, tokens: int) -> torch.Tensor:
        return self.rows(tokens)

    def forward(self, input_ids: Any, position_ids: Any, use_cache: bool) -> Any:
        x = self.embed(input_ids)[:, None]
        scaled = x * (1 + self.count(input_ids.shape[1]))[:, None]
        return (ALL_ATTENTION_FUNCTIONS[PROBE](self, scaled, x, x, None)[0].flatten(2) + x[:, 0],)


class FromTheEnd(Scaled):
    """How many tokens follow: no position says so."""

    def count(self, tokens: int) -> torch.Tensor:
        return tokens - 1 - self.rows(tokens)


def test_a_count_of_rows_that_only_attention_sees_is_found() -> None:
    with torch.no_grad():
        check_rows(Scaled(wrapped=True), IDS, "MODEL")
        with pytest.raises(CountsRows, match="Scaled takes a token's row") as caught:
            check_rows(Scaled(wrapped=False), IDS, "MODEL")
    assert caught.value.name == "Scaled"


def test_a_count_from_the_last_row_is_not_mended_by_positions() -> None:
    with torch.no_grad(), pytest.raises(CountsRows, match="FromTheEnd"):
        check_rows(FromTheEnd(wrapped=True), IDS, "MODEL")


def test_in_a_step_rows_are_its_positions() -> None:
    rows, layer = torch.arange(4), Scaled(wrapped=True)
    assert layer.step_places(rows).tolist() == [0, 1, 2, 3]
    with step(torch.tensor([9000, 3, 4, 0])):
        assert layer.step_places(rows).tolist() == [9000, 3, 4, 0]
        with pytest.raises(ValueError, match="5 rows are counted in a step of 4 tokens"):
            layer.step_places(torch.arange(5))
    assert layer.step_places(rows).tolist() == [0, 1, 2, 3]


@cache
def source(model_type: str) -> ModelSource:
    return source_of_config(tiny_config(CONFIG_MAPPING[model_type]()), model_type)


@cache
def mended() -> ModelSource:
    """Llama 4: layers without rotation scale their queries by `arange`."""
    given = source("llama4_text")
    with pytest.raises(CountsRows) as caught:
        read_masks(given)
    made = count_positions(given, port_model(given, ()), caught.value.name)
    assert made is not None
    return made


def test_the_call_in_the_source_is_wrapped() -> None:
    (made,) = mended().prepare.classes.values()
    text = inspect.getsource(made)
    wrapped = "self.step_places(torch.arange(hidden_states.shape[1], device=hidden_states.device))"
    assert f"positions = {wrapped} + past_seen_tokens" in text


def test_the_mended_model_counts_positions_and_is_the_same_elsewhere() -> None:
    read_masks(mended())  # refuses what still counts rows
    ids = torch.randint(3, 100, (1, 23), generator=torch.Generator().manual_seed(0))
    own = real_model(source("llama4_text"), attn_implementation="eager")
    new = real_model(mended(), attn_implementation="eager")
    later = torch.arange(5000, 5023)
    with torch.no_grad():
        assert torch.equal(own(input_ids=ids).logits, new(input_ids=ids).logits)
        before = new(input_ids=ids, position_ids=later[None]).logits
        with step(later):
            after = new(input_ids=ids, position_ids=later[None]).logits
    assert not torch.allclose(before, after, atol=1e-2)  # scaled as at 5000, not as at 0


def test_the_scale_is_that_of_the_position() -> None:
    """log(1 + floor((position + 1) / floor_scale)) * attn_scale + 1, the formula of the paper."""
    model: Any = real_model(mended(), attn_implementation="eager")
    layer = next(m for m in model.modules() if isinstance(m, Placed) and not m.use_rope)
    places, seen = torch.tensor([0, 7, 8191, 20000]), []

    def note(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(query)
        return query.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("note_queries", note)
    model.config._attn_implementation = "note_queries"
    x = torch.randn(1, 4, model.config.hidden_size)
    with torch.no_grad(), step(places):
        layer(x, None, None)
    plain = layer.q_proj(x).view(1, 4, -1, layer.head_dim).transpose(1, 2)
    expected = ((places + 1.0) / layer.floor_scale).floor().log1p() * layer.attn_scale + 1.0
    torch.testing.assert_close(seen[0], plain * expected[:, None])


def test_a_class_without_such_a_count_is_not_changed() -> None:
    given = source("llama")
    assert count_positions(given, port_model(given, ()), "LlamaAttention") is None
