"""Routers and experts of every mixture-of-experts model type, read from the graph.

The facts are compared with a table written by hand from the models' sources, and their formula, in float64 numpy,
with what the models' own code hands to its experts on hard logits (large, nearly equal, large biases).
"""

from __future__ import annotations

import numpy as np
import pytest

from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.moe import SharedFacts
from neuron_autoport.trace.router import RouterFacts
from neuron_autoport.trace.routing import UnknownRouting
from tests.trace.routers import (
    choice_and_scores,
    clear_rows,
    facts_of,
    formula_weights,
    run_block,
    small_config,
)

BIAS = "chosen with a bias, renormalized"
# From the sources, in the tiny configurations (and `routers.CHANGES`): 8 experts, 2 of them chosen.
ROUTERS = {
    "afmoe": f"sigmoid, top 2 of 8, {BIAS}",
    "aria_text": "top 2 of 8, softmax",
    "axk1": "sigmoid, top 2 of 8, in 2 of 4 groups, chosen with a bias, renormalized, × 2.5",
    "axk2": f"sigmoid, top 2 of 8, {BIAS}, × 2.5",
    "cohere2_moe": "top 2 of 8, sigmoid, renormalized",
    "dbrx": "softmax, top 1 of 4, renormalized",
    "deepseek_v2": "softmax, top 2 of 8, in 2 of 4 groups",
    "deepseek_v3": "sigmoid, top 2 of 8, in 2 of 4 groups, chosen with a bias, renormalized, × 2.5",
    "deepseek_v32": "sigmoid, top 2 of 8, in 2 of 4 groups, chosen with a bias, renormalized, × 2.5",
    "deepseek_v4": f"sqrt_softplus, top 2 of 8, {BIAS}, × 1.5",
    "dots1": "sigmoid, top 2 of 8, in 1 of 1 groups, chosen with a bias",
    "ernie4_5_moe": f"softmax, top 2 of 8, {BIAS}",
    "exaone_moe": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}, × 2.5",
    "flex_olmo": "softmax, top 2 of 7",
    "gemma4_text": "softmax, top 2 of 8, renormalized, × a factor per expert",
    "glm4_moe": f"sigmoid, top 2 of 8, in 2 of 4 groups, {BIAS}",
    "glm4_moe_lite": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}, × 1.8",
    "glm_moe_dsa": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}, × 2.5",
    "gpt_oss": "top 2 of 8, softmax",
    "granitemoe": "top 2 of 8, softmax",
    "granitemoe_swa": "top 2 of 8, softmax",
    "granitemoehybrid": "top 2 of 8, softmax",
    "granitemoeshared": "top 2 of 8, softmax",
    "hunyuan_v1_moe": "softmax, top 2 of 8, renormalized",
    "hy_v3": f"sigmoid, top 2 of 8, {BIAS}, × 2.826",
    "hy_v4": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}, × 2.827",
    "jamba": "softmax, top 2 of 8",
    "kimi_linear": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}, × 2.446",
    "laguna": f"sigmoid, top 2 of 8, {BIAS}, logits capped at 3",
    "lfm2_moe": f"sigmoid, top 2 of 8, {BIAS}",
    "llama4": "top 1 of 8, sigmoid, on the experts' input",
    "llama4_text": "top 1 of 8, sigmoid, on the experts' input",
    "longcat_flash": "softmax, top 2 of 12, chosen with a bias, × 6",
    "mellum": "softmax, top 2 of 8, renormalized",
    "mimo_v2_flash": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}",
    "minimax": "softmax, top 2 of 8, renormalized",
    "minimax_m2": f"sigmoid, top 2 of 8, {BIAS}",
    "minimax_m3_vl_text": f"sigmoid, top 2 of 8, {BIAS}",
    "mixtral": "softmax, top 2 of 8, renormalized",
    "nemotron_h": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}",
    "olmoe": "softmax, top 2 of 8",
    "qwen2_moe": "softmax, top 2 of 8",
    "qwen3_5_moe_text": "softmax, top 2 of 8, renormalized",
    "qwen3_moe": "softmax, top 2 of 8, renormalized",
    "qwen3_next": "softmax, top 2 of 8, renormalized",
    "qwen4_exp_text": "softmax, top 2 of 8, renormalized",
    "solar_open": f"sigmoid, top 2 of 8, in 1 of 1 groups, {BIAS}",
}
# Refused, with what stands in the way.
REFUSED = {
    "inkling_text": "`slice` stands between the chosen scores and the weights",
    "phimoe": "the experts are not chosen by a top-k",
    "zaya": "the experts are not chosen by a top-k",
}
# No block is seen: off by default (doge), or its layers are not traced to their experts.
UNSEEN = ("doge", "jetmoe")
# Experts that are not the plain "act=silu, gate|up" [experts, out, in].
EXPERTS = {
    "aria_text": "act=silu, gate|up, weights kept transposed",
    "deepseek_v4": "act=silu, gate|up, gate ≤ 10, |up| ≤ 10",
    "gemma4_text": "act=gelu_tanh, gate|up",
    "gpt_oss": "act=swish(1.702x), gate, up interleaved, gate ≤ 7, |up| ≤ 7, up + 1, biases, "
    "weights kept transposed",
    "hy_v4": "act=silu, gate|up, gate ≤ 10, |up| ≤ 10",
    "llama4": "act=silu, gate|up, weights kept transposed, all of them on every token",
    "llama4_text": "act=silu, gate|up, weights kept transposed, all of them on every token",
    "minimax_m3_vl_text": "act=swish(1.702x), gate|up, gate ≤ 7, |up| ≤ 7, up + 1",
    "nemotron_h": "act=relu2, no gate",
}
UNREAD_EXPERTS = ("dbrx", "longcat_flash")  # loops over the experts that were hit
GATED_SHARED = ("qwen2_moe", "qwen3_5_moe_text", "qwen3_next", "qwen4_exp_text")
# What the numbers are checked for: every formula once, and each class of router that has one of its own.
NUMBERS = (
    "afmoe", "aria_text", "cohere2_moe", "deepseek_v2", "deepseek_v3",  "ernie4_5_moe", "glm4_moe",
    "gpt_oss", "granitemoe", "hy_v3", "jamba", "laguna", "lfm2_moe", "longcat_flash", "minimax_m2",
    "mixtral", "nemotron_h", "olmoe", "qwen3_moe", "solar_open",
)  # fmt: skip


@pytest.mark.parametrize("model_type", sorted(ROUTERS))
def test_the_router_is_read(model_type: str) -> None:
    found = facts_of(model_type)
    assert found is not None
    router = found[1].router
    assert isinstance(router, RouterFacts), router
    assert router.summary() == ROUTERS[model_type]


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_a_router_of_another_kind_is_refused_at_its_place(model_type: str) -> None:
    found = facts_of(model_type)
    assert found is not None
    router = found[1].router
    assert isinstance(router, UnknownRouting)
    assert router.message == REFUSED[model_type] and router.code == "AP220"
    assert router.span is not None and f"modeling_{model_type[:4]}" in router.span.file


@pytest.mark.parametrize("model_type", sorted({*ROUTERS, *REFUSED} - set(UNREAD_EXPERTS)))
def test_the_experts_are_read(model_type: str) -> None:
    found = facts_of(model_type)
    assert found is not None
    experts = found[1].experts
    assert isinstance(experts, ExpertsFacts), experts
    config = small_config(model_type).get_text_config()
    words = EXPERTS.get(model_type, "act=silu, gate|up")
    assert experts.summary().endswith(f"→{config.hidden_size}, {words}")


@pytest.mark.parametrize("model_type", UNREAD_EXPERTS)
def test_experts_that_loop_over_those_hit_are_refused(model_type: str) -> None:
    found = facts_of(model_type)
    assert found is not None
    experts = found[1].experts
    assert isinstance(experts, UnknownRouting)


@pytest.mark.parametrize("model_type", UNSEEN)
def test_models_whose_experts_are_not_seen(model_type: str) -> None:
    assert facts_of(model_type) is None


@pytest.mark.parametrize("model_type", GATED_SHARED)
def test_a_gated_shared_expert_is_told_from_a_plain_one(model_type: str) -> None:
    found, plain = facts_of(model_type), facts_of("glm4_moe")
    assert found is not None and plain is not None
    shared = found[1].shared
    assert isinstance(shared, SharedFacts) and shared.gate == "shared_expert_gate"
    assert shared.modules == tuple(f"shared_expert.{n}_proj" for n in ("down", "gate", "up"))
    assert isinstance(plain[1].shared, SharedFacts) and plain[1].shared.gate is None


@pytest.mark.parametrize("model_type", NUMBERS)
def test_the_formula_gives_what_the_model_routes(model_type: str) -> None:
    found = facts_of(model_type)
    assert found is not None
    path, facts = found
    router = facts.router
    assert isinstance(router, RouterFacts)
    block, routed = run_block(small_config(model_type), path, facts)
    choice, scores = choice_and_scores(router, block, routed.hidden)
    indices = routed.indices.numpy()
    known = ~np.isnan(choice).any(-1)
    expected = np.sort(np.argsort(-choice, axis=-1, kind="stable")[:, : router.top_k], axis=-1)
    clear = known & clear_rows(choice, router.top_k)
    assert clear.sum() >= len(choice) // 2  # most rows have one right answer
    np.testing.assert_array_equal(np.sort(indices, axis=-1)[clear], expected[clear])
    # Whatever was chosen among equals, it is a right choice, and its weights are the formula's.
    worst = np.take_along_axis(choice, indices, axis=-1).min(-1)
    left = choice.copy()
    np.put_along_axis(left, indices, -np.inf, axis=-1)
    assert (worst >= left.max(-1) - 1e-6)[known].all()
    weights = formula_weights(router, scores, indices, block)
    np.testing.assert_allclose(routed.weights.double().numpy(), weights, rtol=2e-5, atol=1e-12)
