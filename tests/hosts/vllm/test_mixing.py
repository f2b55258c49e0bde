"""Which tokens an attention shows each other, and what else looks back: read from runs of small models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.attention import Reach, check_chunks, read_reach
from neuron_autoport.hosts.vllm.attention_facts import Facts
from neuron_autoport.hosts.vllm.compat import HostError, has_states
from neuron_autoport.hosts.vllm.masks import Mask, chunk_of, unlike, window_of
from neuron_autoport.hosts.vllm.mixing import check_rows, read_masks
from neuron_autoport.hosts.vllm.probe import PROBE, check_counts
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


CHUNKS: dict[str, tuple[Callable[..., Any], int | None]] = {
    "of 4": (lambda b, h, q, k: (k <= q) & (k // 4 == q // 4), 4),
    "of 64": (lambda b, h, q, k: (k <= q) & (k // 64 == q // 64), 64),
    "of 8192": (lambda b, h, q, k: (k <= q) & (k // 8192 == q // 8192), 8192),
    "none": (lambda b, h, q, k: k <= q, None),
    "a window": (lambda b, h, q, k: (k <= q) & (k > q - 5), None),
    "the first is shorter": (lambda b, h, q, k: (k <= q) & ((k + 1) // 4 == (q + 1) // 4), None),
    "and the chunk before": (lambda b, h, q, k: (k <= q) & (q // 4 - k // 4 < 2), None),
    "both ways": (lambda b, h, q, k: k // 4 == q // 4, None),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_the_chunks_of_a_rule(name: str) -> None:
    rule, chunk = CHUNKS[name]
    assert chunk_of(rule) == chunk


def config(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def seen(**changes: Any) -> Mask:
    return replace(Mask(("Layer", None), None, None, None), **changes)


FACTS = Facts(4, 2, 32, 32, 0.1, None, None, None)
SMALL, FULL = (config(attention_chunk_size=c, sliding_window=w) for c, w in ((4, 5), (8192, 512)))


def reach(mask: Mask, facts: Facts = FACTS) -> tuple[int | None, int | None]:
    found = read_reach(facts, mask, FULL, SMALL, "here", "MODEL")
    return found.window, found.chunk


def test_chunks_and_windows_of_the_full_model() -> None:
    """The small model's mask says which field it is, the full model's field how much."""
    assert reach(seen()) == (None, None)
    assert reach(seen(chunk=4)) == (None, 8192)
    assert reach(seen(window=5)) == (512, None)
    assert reach(seen(window=7, given=7), replace(FACTS, window=64)) == (64, None)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (seen(chunk=6), "its mask has chunks of 6, its attention is told none"),
        (seen(chunk=4, given=4), "chunks of 4, its attention is told a window of 4"),
        (seen(window=6), "its mask has a window of 6, its attention is told none"),
        (seen(problem="a mask that is not causal"), "by a mask that is not causal"),
    ],
)
def test_masks_that_no_field_explains_are_refused(mask: Mask, said: str) -> None:
    with pytest.raises(HostError, match=said):
        reach(mask)


@pytest.mark.parametrize(
    ("facts", "block", "said"),
    [
        (FACTS, 96, "chunks of 8192 tokens are no whole blocks of 96"),
        (replace(FACTS, soft_cap=30.0), 128, "neither a soft-cap nor sinks"),
        (replace(FACTS, sinks="sinks"), 128, "neither a soft-cap nor sinks"),
    ],
)
def test_chunks_that_vllm_cannot_compute_are_refused(facts: Facts, block: int, said: str) -> None:
    check_chunks(FACTS, Reach(None, 8192), 128, "here", "MODEL")
    with pytest.raises(HostError, match=said):
        check_chunks(facts, Reach(None, 8192), block, "here", "MODEL")


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


class Halting(nn.Module):
    """Attends again as often as `passes` says for a number of tokens."""

    def __init__(self, passes: Callable[[int], int]) -> None:
        super().__init__()
        self.embed, self.passes = nn.Embedding(32, 8), passes

    def forward(self, input_ids: Any, use_cache: bool) -> Any:
        x = self.embed(input_ids)[:, None]
        for _ in range(self.passes(input_ids.shape[1])):
            x = x + ALL_ATTENTION_FUNCTIONS[PROBE](self, x, x, x, None)[0].transpose(1, 2)
        return (x[:, 0],)


def test_passes_that_depend_on_the_number_of_tokens_are_refused() -> None:
    ids = torch.arange(13)[None]
    with torch.no_grad():
        check_counts(Halting(lambda tokens: 3), ids, "MODEL")
        with pytest.raises(HostError, match="attends 1 times for 1 token, 2 times for 13"):
            check_counts(Halting(lambda tokens: 1 + (tokens > 1)), ids, "MODEL")


@pytest.mark.parametrize("model_type", ["hrm_text", "diffllama"])
def test_layers_that_attend_several_times_have_plain_masks(model_type: str) -> None:
    masks = read_masks(source(model_type)).masks
    assert masks and all(m.problem is None and m.window is None for m in masks)


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
