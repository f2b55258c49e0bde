"""Which tokens an attention shows each other, and what else looks back: read from runs of small models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.compat import HostError, has_states
from neuron_autoport.hosts.vllm.masks import unlike, window_of
from neuron_autoport.hosts.vllm.mixing import check_rows, read_masks
from neuron_autoport.hosts.vllm.states import State, states_of
from neuron_autoport.models.source import source_of_config
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import port_model


def source(model_type: str) -> Any:
    return source_of_config(tiny_config(CONFIG_MAPPING[model_type]()), model_type)


RULES: dict[str, tuple[Callable[..., Any], int | None, bool]] = {
    "causal": (lambda b, h, q, k: k <= q, None, True),
    "window of 5": (lambda b, h, q, k: (k <= q) & (k > q - 5), 5, True),
    "window of 8192": (lambda b, h, q, k: (k <= q) & (k > q - 8192), 8192, True),
    "chunks": (lambda b, h, q, k: (k <= q) & (k // 64 == q // 64), None, False),
    "both ways": (lambda b, h, q, k: k >= 0, None, False),
    "with the first token": (lambda b, h, q, k: ((k <= q) & (k > q - 5)) | (k == 0), None, False),
}


@pytest.mark.parametrize("name", RULES)
def test_the_window_of_a_rule(name: str) -> None:
    rule, window, known = RULES[name]
    found, problem = window_of(rule)
    assert (found, problem is None) == (window, known)


def test_masks_of_windowed_and_full_layers() -> None:
    shown = read_masks(source("gemma3_text"))
    found = {kind: mask.window for (_, kind), mask in unlike(shown.masks).items()}
    assert found == {"sliding_attention": shown.config.sliding_window, "full_attention": None}
    assert all(mask.problem is None for mask in shown.masks)


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("bloom", "BloomAttention) looks back at earlier tokens by itself"),
        ("rwkv", "looks back at earlier tokens by itself"),
        ("recurrent_gemma", "RecurrentGemmaRecurrentBlock) looks back"),
        ("falcon", "does not take another implementation of its attention"),
    ],
)
def test_what_mixes_tokens_without_a_cache_is_refused(model_type: str, said: str) -> None:
    with pytest.raises(HostError, match="AP411") as caught:
        read_masks(source(model_type))
    assert said in caught.value.what


class Placed(nn.Module):
    """Adds to each token where it stands: by the positions it is given, or by counting rows."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.embed, self.counts = nn.Embedding(32, 8), counts

    def forward(self, input_ids: Any, position_ids: Any, use_cache: bool) -> Any:
        rows = torch.arange(input_ids.shape[1])[None]
        return (self.embed(input_ids) + (rows if self.counts else position_ids)[..., None],)


def test_rows_that_count_as_positions_are_refused() -> None:
    ids = torch.arange(13)[None]
    with torch.no_grad():
        check_rows(Placed(counts=False), ids, "MODEL")
        with pytest.raises(HostError, match="row among those of a step"):
            check_rows(Placed(counts=True), ids, "MODEL")


def test_a_module_that_attends_in_several_passes_is_found() -> None:
    masks = read_masks(source("hrm_text")).masks
    assert any(m.problem and "several passes" in m.problem for m in masks)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [("mamba2", {"Mamba2Mixer": True}), ("jamba", {"JambaMambaMixer": False})],
)
def test_which_mixers_go_on_with_several_tokens(model_type: str, expected: Any) -> None:
    """transformers' Jamba mixer starts its scan at zero when it is given more than one token."""
    assert read_masks(source(model_type)).continued == expected


@pytest.mark.parametrize(("model_type", "expected"), [("mamba2", True), ("llama", False)])
def test_which_models_have_states(model_type: str, expected: bool) -> None:
    assert has_states(CONFIG_MAPPING[model_type]()) is expected


def test_the_states_of_a_mixer_have_the_shapes_of_its_formula() -> None:
    """Mamba 2: a convolution over x, B and C, and a matrix per head."""
    config = tiny_config(CONFIG_MAPPING["mamba2"]())
    port = port_model(config, ())
    found = states_of(port.model.get_submodule(port.base), port, config)
    inner = config.expand * config.hidden_size
    width = inner + 2 * config.n_groups * config.state_size
    assert len(found) == config.num_hidden_layers
    for states in found.values():
        conv, recurrent = states
        assert (conv.kind, conv.shape) == ("conv", (width, config.conv_kernel))
        assert recurrent.kind == "recurrent"
        assert recurrent.shape == (config.num_heads, config.head_dim, config.state_size)


def test_bytes_of_a_state() -> None:
    import torch

    assert State("conv", 0, (3, 4), torch.bfloat16).bytes == 24
