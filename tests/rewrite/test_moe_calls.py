"""What a mixture-of-experts block becomes on Neuron and on vLLM's engine, from its facts.

Expected calls and refusals are from the written contract of the plugin's functions and vLLM 0.32's activations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_autoport.hosts.vllm.moe_limits import refusal
from neuron_autoport.rewrite.moe_calls import CTE, MAPPING, ROUTER, TKG, moe_calls
from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.glu import Gate
from neuron_autoport.trace.groups import Groups
from neuron_autoport.trace.moe import MoEFacts, SharedFacts
from neuron_autoport.trace.router import RouterFacts
from neuron_autoport.trace.routing import UnknownRouting

PLAIN_ROUTER = RouterFacts(
    experts=8, top_k=2, score="softmax", score_after_top_k=False, renormalize=True, eps=0.0,
    eps_is_floor=False, scale=1.0, bias=None, expert_scale=None, groups=None, soft_cap=None,
    score_dtype="float32", dtype="float32", weight="gate.weight", weight_layout="out_in",
    weight_bias=None, reads_hidden=True,
)  # fmt: skip
PLAIN_EXPERTS = ExpertsFacts(
    8, 1024, 512, Gate("silu", "gate_up"), "gate_up_proj", "down_proj", "out_in", None, None, False
)
PLAIN = MoEFacts(
    "experts", PLAIN_ROUTER, PLAIN_EXPERTS, None, ("rows", "chosen", "weights"), 2, 8, 1.0
)
FUSED = (ROUTER, MAPPING, CTE)
OAI = Gate("swish", "interleaved", 1.702, 7.0, 7.0, 1.0)


def routed(**changes: Any) -> MoEFacts:
    return replace(PLAIN, router=replace(PLAIN_ROUTER, **changes))


def gated(gate: Gate, **changes: Any) -> MoEFacts:
    return replace(PLAIN, experts=replace(PLAIN_EXPERTS, gate=gate, **changes))


# facts, calls in prefill, what is said of the router, the reason why decode is torch
ROUTES: dict[str, tuple[MoEFacts, tuple[str, ...], str | None, str | None]] = {
    "softmax, renormalized": (PLAIN, FUSED, None, None),
    "renormalized with 1e-20": (routed(eps=1e-20), FUSED, None, None),
    "renormalized with 1e-3": (routed(eps=1e-3), FUSED[1:], "0.001 in the sum", "0.001 in the sum"),
    "softmax, not renormalized": (
        routed(renormalize=False), FUSED[1:], "always renormalizes softmax", None,
    ),
    "softmax of the chosen": (
        routed(renormalize=False, score_after_top_k=True), FUSED, None, None,
    ),
    "sigmoid keeps the order": (routed(score="sigmoid", renormalize=False), FUSED, None, None),
    "sigmoid of the chosen, renormalized": (
        routed(score="sigmoid", score_after_top_k=True), FUSED[1:], "does not renormalize", None,
    ),
    "bias": (routed(bias="gate.bias"), FUSED[1:], "a bias that only", "a bias that only"),
    "groups": (
        routed(groups=Groups(4, 2, 2, 0.0)), FUSED[1:], "groups of experts", "groups of experts",
    ),
    "one group": (routed(groups=Groups(1, 1, 2, 0.0)), FUSED, None, None),
    "scale": (routed(scale=2.5), FUSED[1:], "weights × 2.5", "weights × 2.5"),
    "shared expert": (
        replace(PLAIN, shared=SharedFacts(("up",), None)), FUSED, None, "refuses a shared expert",
    ),
    "unread": (
        replace(PLAIN, router=UnknownRouting("sinkhorn")), FUSED[1:], "sinkhorn", "sinkhorn",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_the_calls_of_a_router(name: str) -> None:
    facts, prefill, stays, decode = ROUTES[name]
    calls = moe_calls(facts)
    assert calls.prefill.calls == prefill and calls.prefill.reason is None
    said = "; ".join(calls.prefill.notes)
    assert (stays or "") in said and ("router stays in torch" in said) == (stays is not None)
    if decode is None:
        assert calls.decode.calls == (TKG,) and calls.decode.limits == ()
    else:
        assert calls.decode.calls == () and decode in (calls.decode.reason or "")


# gate, does NF have it, does vLLM's layer have it
GATES: dict[str, tuple[Gate, bool, bool]] = {
    "silu": (Gate("silu", "gate_up"), True, True),
    "silu, up first": (Gate("silu", "up_gate"), True, True),
    "gelu": (Gate("gelu", "gate_up"), True, True),
    "tanh gelu": (Gate("gelu_tanh", "gate_up"), False, True),
    "relu": (Gate("relu", "gate_up"), False, False),
    "no gate": (Gate("relu2", None), False, False),
    "swigluoai": (OAI, True, True),
    "swigluoai in halves": (replace(OAI, order="gate_up"), True, True),
    "another alpha": (replace(OAI, alpha=1.5), False, False),
    "another limit": (replace(OAI, up_limit=8.0), True, False),
    "clamped silu": (Gate("silu", "gate_up", 1.0, 10.0, 10.0), True, False),
}


@pytest.mark.parametrize("name", sorted(GATES))
def test_the_activation_of_the_experts(name: str) -> None:
    gate, on_neuron, on_vllm = GATES[name]
    facts = gated(gate)
    calls = moe_calls(facts)
    assert (calls.prefill.reason is None, calls.decode.reason is None) == (on_neuron, on_neuron)
    refused = refusal(facts)
    assert (refused is None) == on_vllm
    if not on_vllm:
        assert "vLLM's fused experts have no" in str(refused) or (
            # Its CPU kernels have not; the layer has on other platforms.
            "vLLM's CPU kernels have no" in str(refused) and refusal(facts, cpu=False) is None
        )


def test_sizes_that_the_kernels_do_not_take() -> None:
    small = replace(PLAIN, experts=replace(PLAIN_EXPERTS, hidden=320, intermediate=192))
    calls = moe_calls(small, tp=2)
    assert calls.prefill.limits == ("96 columns < 128",)
    assert calls.decode.limits == (
        "hidden 320 is no multiple of 256", "96 columns are no multiple of 128",
    )  # fmt: skip
    assert moe_calls(small, tp=8).prefill.limits == ("24 columns are no multiple of 16",)


# facts, arguments, part of the reason
REFUSED: dict[str, tuple[MoEFacts, dict[str, Any], str]] = {
    "unread experts": (replace(PLAIN, experts=UnknownRouting("a loop")), {}, "a loop"),
    "dense": (gated(Gate("silu", "gate_up"), dense=True), {}, "every expert runs on every token"),
    "an index beyond the experts": (replace(PLAIN, reach=9), {}, "chooses among 9, of which 8"),
    "unknown indices": (replace(PLAIN, reach=None), {}, "not known which indices"),
    "columns": (PLAIN, {"ranks": 3}, "512 columns of an expert cannot be shared by 3 ranks"),
    "hidden": (gated(Gate("silu", "gate_up"), hidden=72), {}, "multiple of 32"),
    "clamped columns": (gated(OAI, intermediate=48), {}, "a multiple of 32 columns, here 48"),
    "quantized, transposed": (
        gated(Gate("silu", "gate_up"), layout="in_out"), {"quantized": True}, "one layout",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_vllms_layer_cannot_run(name: str) -> None:
    facts, arguments, reason = REFUSED[name]
    assert reason in str(refusal(facts, **arguments))
    assert refusal(PLAIN, ranks=2, quantized=True) is None
