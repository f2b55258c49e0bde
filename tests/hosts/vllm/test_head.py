"""Modules between the base model and the last linear map: read from the graph, or refused with the operation."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.head import (
    as_saved,
    before_head,
    beside_base,
    modules_between,
    renamed,
)
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import port_model
from neuron_autoport.trace.head import UnknownHead, read_head
from neuron_autoport.trace.tracer import trace_model

WIDTH = 8


class Last(nn.Module):
    """A base model that gives its last state, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return y, y * 2


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Any, more: Any = None) -> Any:
        y = self.norm(self.linear(x))
        return y if more is None else y + more


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.first, self.second = Last(), Dense(), Dense()
        self.decoder = nn.Linear(WIDTH, 32)


class Chain(Whole):
    def forward(self, x: Any) -> Any:
        return self.decoder(self.second(self.first(self.base(x)[0][:, -3:])))


class OtherState(Whole):
    def forward(self, x: Any) -> Any:
        return self.decoder(self.second(self.first(self.base(x)[1])))


class HalfTheWidth(Whole):
    def forward(self, x: Any) -> Any:
        y = self.first(self.base(x)[0])
        return self.decoder(self.second(torch.cat([y[..., :4], y[..., :4]], -1)))


class TwoInputs(Whole):
    def forward(self, x: Any) -> Any:
        y = self.base(x)[0]
        return self.decoder(self.second(self.first(y), y))


class PlainTorchBetween(Whole):
    def forward(self, x: Any) -> Any:
        return self.decoder(self.second(torch.tanh(self.first(self.base(x)[0]))))


def between(model: nn.Module, inputs: Any, base: str) -> tuple[str, ...]:
    trace = trace_model(model, inputs)
    return modules_between(trace, read_head(trace), base)


def toy(kind: type[Whole]) -> tuple[str, ...]:
    with torch.device("meta"):
        return between(kind().eval(), (torch.empty(2, 7, WIDTH),), "base")


def test_a_chain_of_modules_in_the_order_they_run() -> None:
    assert toy(Chain) == ("first", "second")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OtherState, "`getitem` stands between"),
        (HalfTheWidth, "`cat` stands between"),
        (TwoInputs, r"`module\(second\)` stands between"),
        (PlainTorchBetween, "`tanh` stands between"),
    ],
)
def test_what_is_no_chain_is_refused(kind: type[Whole], said: str) -> None:
    with pytest.raises(UnknownHead, match=said):
        toy(kind)


@pytest.mark.parametrize(
    ("model_type", "expected"), [("modernbert-decoder", ("lm_head",)), ("llama", ())]
)
def test_of_models(model_type: str, expected: tuple[str, ...]) -> None:
    port = port_model(tiny_config(CONFIG_MAPPING[model_type]()), ())
    assert modules_between(port.trace, read_head(port.trace), port.base) == expected


NAMES = {"lm_head.": "before_head.0.", "decoder.": "lm_head."}


def test_names_of_the_checkpoint_and_back() -> None:
    saved = ["lm_head.dense.weight", "decoder.bias", "model.decoder.weight"]
    one = torch.zeros(1)
    hosted = [name for name, _ in renamed([(n, one) for n in saved], NAMES, True, [])]
    assert hosted == ["before_head.0.dense.weight", "lm_head.bias", "model.decoder.weight"]
    assert as_saved(hosted, NAMES) == set(saved)


@pytest.mark.parametrize(("names", "bias"), [({}, "lm_head.bias"), (NAMES, "decoder.bias")])
def test_a_bias_that_the_head_does_not_have_is_left_out(names: dict[str, str], bias: str) -> None:
    saved = [(bias.replace("bias", "weight"), torch.zeros(1)), (bias, torch.zeros(1))]
    extra: list[str] = []
    hosted = [name for name, _ in renamed(saved, names, False, extra)]
    assert hosted == ["lm_head.weight"] and extra == [bias]


def test_a_bias_of_the_head_is_wanted_though_the_host_has_none_yet() -> None:
    found = ["model.norm.weight", "lm_head.weight", "before_head.0.dense.bias"]
    assert beside_base(found, biased=False) == found[1:]
    assert beside_base(found, biased=True) == [*found[1:], "lm_head.bias"]
    assert beside_base([*found, "lm_head.bias"], biased=True) == [*found[1:], "lm_head.bias"]


def test_the_modules_run_one_after_the_other_on_rows() -> None:
    model, rows = nn.Module(), torch.randn(5, WIDTH)
    first, second = Dense(), Dense()
    assert before_head(model, rows) is rows
    model.before_head = nn.ModuleList([first, second])
    torch.testing.assert_close(before_head(model, rows), second(first(rows)))
