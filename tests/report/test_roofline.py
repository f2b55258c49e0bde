"""The roofline model against sums worked out by hand for a small Llama."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

from neuron_autoport.models.source import source_of_config
from neuron_autoport.port import Port, port_model
from neuron_autoport.report.build import build_report
from neuron_autoport.report.roofline.chips import CHIPS
from neuron_autoport.report.roofline.info import roofline_info
from neuron_autoport.report.roofline.model import OUTSIDE, Row, Step, roofline
from neuron_autoport.report.schema import Target
from neuron_autoport.rules.library import load_rules

# hidden, intermediate, layers, heads, kv heads, head width, vocabulary
H, INNER, LAYERS, HEADS, KV, D, VOCABULARY = 512, 1024, 3, 4, 2, 128, 1000


def config(**changes: Any) -> Any:
    from transformers import LlamaConfig

    sizes = {"hidden_size": H, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
             "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D,
             "vocab_size": VOCABULARY, "tie_word_embeddings": False}  # fmt: skip
    return LlamaConfig(**{**sizes, **changes})


@cache
def port(layers: int = LAYERS) -> Port:
    return port_model(source_of_config(config(num_hidden_layers=layers), "small"), load_rules())


def rows(step: Step, chip: str = "trn2", layers: int = LAYERS) -> dict[str, Row]:
    found = roofline(port(layers), CHIPS[chip], step, torch.bfloat16)
    return {row.name: row for row in found}


def layer_weights() -> int:
    """Elements of one layer's projections."""
    return H * (HEADS + 2 * KV) * D + HEADS * D * H + 3 * H * INNER


def test_peaks_are_those_published() -> None:
    """Trainium2: 667 TFLOP/s in bfloat16, 2.9 TB/s; Trainium3: 671 and 4.9. Eight cores, two a rank."""
    assert CHIPS["trn2"].rank_flops(torch.bfloat16) == 667e12 / 4
    assert CHIPS["trn2"].rank_memory == 2.9e12 / 4
    assert CHIPS["trn3"].rank_flops(torch.float32) == 183e12 / 4
    assert CHIPS["trn3"].rank_memory == 4.9e12 / 4


def test_a_decode_step_reads_each_weight_and_the_cache_once() -> None:
    found = rows(Step(batch=1, context=2048, tp=1))
    assert list(found) == [OUTSIDE, "model.layers.0-2 ×3"]
    layers = found["model.layers.0-2 ×3"]
    cache_bytes = LAYERS * 2 * KV * D * 2048 * 2
    weights = LAYERS * (layer_weights() + 2 * H) * 2
    assert layers.fused.bytes > cache_bytes + weights
    assert math.isclose(layers.fused.bytes, cache_bytes + weights, rel_tol=0.02)
    products = LAYERS * (2 * layer_weights() + 4 * HEADS * D * 2048)
    assert math.isclose(layers.fused.flops, products, rel_tol=0.02)
    assert layers.fused.flops == layers.unfused.flops


def test_fusing_saves_what_lies_between_and_nothing_else() -> None:
    step = Step(batch=8, context=1024, tp=1)
    layers = rows(step)["model.layers.0-2 ×3"]
    saved = (layers.unfused.bytes - layers.fused.bytes) / LAYERS / step.batch / 2
    # At least the MLP's: gate, up, act(gate) and the product, each written and read.
    assert 8 * INNER <= saved <= 8 * INNER + 60 * H
    assert layers.fused.seconds < layers.unfused.seconds


def test_a_batch_shares_the_weights_but_not_the_cache() -> None:
    one, eight = (rows(Step(b, 1024, 1))["model.layers.0-2 ×3"].fused for b in (1, 8))
    assert math.isclose(eight.flops, 8 * one.flops, rel_tol=1e-9)
    weights = LAYERS * layer_weights() * 2
    assert math.isclose(eight.bytes - weights, 8 * (one.bytes - weights), rel_tol=0.05)


def test_ranks_divide_products_and_cache() -> None:
    one, two = (rows(Step(1, 8192, tp))["model.layers.0-2 ×3"].fused for tp in (1, 2))
    assert math.isclose(two.bytes, one.bytes / 2, rel_tol=0.02)
    assert math.isclose(two.flops, one.flops / 2, rel_tol=0.02)


def test_time_is_bytes_over_bandwidth_where_memory_binds() -> None:
    found = rows(Step(1, 1024, 1))["model.layers.0-2 ×3"].fused
    assert found.memory_bound == found.seconds
    assert math.isclose(found.seconds, found.bytes / (2.9e12 / 4), rel_tol=1e-9)


def test_a_call_whose_limit_is_broken_counts_as_unfused() -> None:
    """A gate of 8192 columns is over NF.mlp's 4096 on one rank, and under it on two."""
    wide = port_model(source_of_config(config(intermediate_size=8192), "wide"), load_rules())
    for tp, fused in ((1, False), (2, True)):
        found = roofline(wide, CHIPS["trn2"], Step(64, 1024, tp), torch.bfloat16)
        layers = next(row for row in found if row.name != OUTSIDE)
        saved = (layers.unfused.bytes - layers.fused.bytes) / LAYERS / 64 / 2
        assert (saved >= 8 * 8192 / tp) is fused


def test_depth_does_not_change_a_layer() -> None:
    three, six = (rows(Step(2, 1024, 1), layers=n) for n in (3, 6))
    a, b = three["model.layers.0-2 ×3"].fused, six["model.layers.0-5 ×6"].fused
    assert math.isclose(2 * a.seconds, b.seconds, rel_tol=1e-9)


def test_the_report_says_that_it_is_a_model() -> None:
    info = roofline_info(port(), "trn3", Step(4, 1024, 2))
    assert info.basis == "model" and "Trainium3" in info.source and info.left_out
    total = sum(row.fused.seconds for row in info.rows)
    assert math.isclose(info.total.fused.seconds, total, rel_tol=1e-12)


@pytest.mark.parametrize(("target", "step"), [("cpu", Step(1, 1, 1)), ("trn2", None)])
def test_no_roofline_where_none_is_asked_for(target: Any, step: Step | None) -> None:
    source = source_of_config(config(), "small")
    report = build_report(source, port(), Target(name=target, tp=1), step=step)
    assert report.roofline is None
