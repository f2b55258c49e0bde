"""Channels that are rotated, as the graph has them and as the configuration tells them (pain P20)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import Port, port_model
from neuron_autoport.report.build import build_report
from neuron_autoport.report.findings import findings
from neuron_autoport.report.rotary import told_widths
from neuron_autoport.report.schema import Target, WarningInfo
from tests.cli.conftest import Run, run
from tests.helpers import small_config

__all__ = ["run"]  # a fixture
TARGET = Target(name="cpu", tp=1)


def ported(model_type: str, **more: Any) -> Port:
    return port_model(small_config(model_type, **more), ())


def warned(port: Port) -> list[tuple[str, WarningInfo]]:
    config: Any = port.model.config
    source = ModelSource("m", "model_type", None, config, config, type(port.model).__name__)
    report = build_report(source, port, TARGET)
    found = [f for f in findings(report) if f.code == "AP302"]
    assert all(f.level == "warning" for f in found)
    listed = [(c.name, w) for c in report.classes for w in c.warnings]
    assert {w.message for _, w in listed} == {f.message.partition(": ")[2] for f in found}
    return listed


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("stablelm", {"partial_rotary_factor": 0.25}),
        ("stablelm", {"partial_rotary_factor": 0.5}),
        ("phi", {"partial_rotary_factor": 0.5}),
        ("gpt_neox", {"rotary_pct": 0.25}),
        ("gptj", {"rotary_dim": 8, "n_embd": 64, "n_head": 4, "n_layer": 2}),
        ("llama", {}),
        ("llama", {"head_dim": 32}),
        ("gemma3_text", {}),
    ],
)
def test_what_a_configuration_tells_is_what_is_rotated(
    model_type: str, more: dict[str, Any]
) -> None:
    assert warned(ported(model_type, **more)) == []


def test_a_factor_that_the_configuration_has_lost() -> None:
    """The graph turns a quarter of 16 channels; a configuration without the factor tells all of them."""
    port = ported("stablelm", partial_rotary_factor=0.25)
    config: Any = port.model.config
    config.partial_rotary_factor = None
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    ((name, warning),) = warned(port)
    assert name == "StableLmAttention" and warning.code == "AP302"
    assert warning.message.startswith("4 channels of a head are rotated; the configuration says 16")
    assert warning.place is not None
    place = warning.place
    marked = place.source[place.column - 1 : place.end_column - 1]
    assert marked.startswith("apply_rotary_pos_emb(")


def test_a_factor_that_the_code_does_not_read() -> None:
    """Llama's code rotates whole heads, whatever factor a checkpoint's configuration has."""
    ((name, warning),) = warned(ported("llama", partial_rotary_factor=0.25))
    assert name == "LlamaAttention"
    assert warning.message == (
        "16 channels of a head are rotated; the configuration says 4 (head_dim × 0.25)"
    )


NEITHER = {"hidden_size": 64, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("fields", "widths"),
    [
        (NEITHER, {16}),
        (NEITHER | {"head_dim": 32}, {32}),
        (NEITHER | {"head_dim": None}, {16}),
        (NEITHER | {"rotary_dim": 8}, {8}),
        (NEITHER | {"rotary_dim": None}, {16}),
        (NEITHER | {"kv_channels": 24}, {24}),
        (NEITHER | {"head_dim": 48, "qk_rope_head_dim": 8}, {8}),
        (NEITHER | {"partial_rotary_factor": 0.5}, {8}),
        (NEITHER | {"rope_parameters": {"partial_rotary_factor": 0.25}}, {4}),
        (NEITHER | {"head_dim": 42, "rotary_pct": 0.5}, {22}),
        (NEITHER | {"rope_parameters": {"full": {"partial_rotary_factor": 0.5}, "sliding": {}}},
         {8, 16}),
        (NEITHER | {"rope_parameters": {"full": {"partial_rotary_factor": 0.25,
                                                 "rope_type": "proportional"}}}, {16}),
        (NEITHER | {"decoder_config": {"hidden_size": 96, "num_attention_heads": 4}}, {16, 24}),
        ({"_attn_implementation": "sdpa"}, set()),
    ],
)  # fmt: skip
def test_widths_by_hand(fields: dict[str, Any], widths: set[int]) -> None:
    assert set(told_widths(SimpleNamespace(**fields))) == widths


def test_no_configuration_tells_nothing() -> None:
    assert told_widths(None) == {}


MODULE = '''
import torch
from torch import nn


class Config:
    hidden_size, num_attention_heads, head_dim = 32, 2, 16

    def __init__(self):
        self.head_dim = 16
        self.partial_rotary_factor = {factor}


class Turned(nn.Module):
    """Turns the first 4 channels, whatever its configuration says."""

    def __init__(self):
        super().__init__()
        self.config = Config()

    def forward(self, q, cos, sin):
        turned, rest = q[..., :4], q[..., 4:]
        first, second = turned[..., :2], turned[..., 2:]
        half = torch.cat((-second, first), dim=-1)
        return torch.cat((turned * cos + half * sin, rest), dim=-1)
'''


@pytest.mark.parametrize(("factor", "says"), [(0.25, False), (None, True), (0.5, True)])
def test_in_the_text_of_inspect(run: Run, tmp_path: Any, factor: float | None, says: bool) -> None:
    path = tmp_path / "turned.py"
    path.write_text(MODULE.format(factor=factor), encoding="utf-8")
    shapes = [a for s in ("2,2,5,16", "2,1,5,4", "2,1,5,4") for a in ("--input", s)]
    ran = run("inspect", f"{path}:Turned", *shapes, "--trust-remote-code")
    assert ran.code == 0, ran.err
    assert ("AP302  Turned: 4 channels of a head are rotated" in ran.out) is says
    assert ("Not as the configuration says" in ran.out) is says
