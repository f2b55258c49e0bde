"""Which experts vLLM's fused layer is given, and that its formula is the one the graph shows.

The clamped gate and the ungated activation run on vLLM's other platforms only, which are not here: their formulas
are compared as vLLM's own torch code has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts
from transformers.models.llama4.modeling_llama4 import Llama4Router, Llama4TextExperts
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

from neuron_autoport.hosts.vllm.moe_limits import Activation, activation_of, few_rows, refusal
from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.glu import Gate
from neuron_autoport.trace.moe import MoEFacts
from neuron_autoport.trace.routing import UnknownRouting
from tests.trace.routers import facts_of

pytest.importorskip("vllm")


def experts(gate: Gate) -> ExpertsFacts:
    return ExpertsFacts(8, 64, 32, gate, "up", "down", "out_in", None, None, False)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (Gate("silu", "gate_up"), Activation("silu")),
        (Gate("silu", "gate_up", 1.0, 10.0, 10.0), Activation("silu", limit=10.0)),
        (Gate("swish", "interleaved", 1.702, 7.0, 7.0, 1.0), Activation("swigluoai", True)),
        (Gate("relu2", None), Activation("relu2_no_mul", gated=False)),
        (Gate("silu", "gate_up", 1.0, 10.0, 8.0), None),
        (Gate("silu", "gate_up", 1.0, None, 10.0), None),
        (Gate("gelu", "gate_up", 1.0, 10.0, 10.0), None),
        (Gate("relu", None), None),
        (Gate("relu", "gate_up"), None),
    ],
)
def test_the_activation(gate: Gate, expected: Activation | None) -> None:
    found = activation_of(experts(gate))
    if expected is None:
        assert isinstance(found, str) and gate.summary() in found
        return
    assert found == expected
    assert found.on_cpu is (expected in (Activation("silu"), Activation("swigluoai", True)))


def block(model_type: str) -> MoEFacts:
    """The facts of a tiny model's last block."""
    found = facts_of(model_type)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("model_type", "on_cpu"),
    [
        ("deepseek_v4", "vLLM's CPU kernels have no `act=silu, gate|up, gate ≤ 10, |up| ≤ 10`"),
        ("hy_v4", "vLLM's CPU kernels have no `act=silu, gate|up, gate ≤ 10, |up| ≤ 10`"),
        ("nemotron_h", "vLLM's CPU kernels have no `act=relu2, no gate`"),
        ("llama4_text", None),
        ("zaya", None),
    ],
)
def test_blocks_of_models(model_type: str, on_cpu: str | None) -> None:
    facts = block(model_type)
    assert refusal(facts, cpu=False) is None
    known = facts.experts
    assert isinstance(known, ExpertsFacts)
    aligned = replace(facts, experts=replace(known, hidden=64, intermediate=64))
    assert refusal(aligned) == on_cpu


def test_a_clamped_gate_is_vllms_limit() -> None:
    from vllm.model_executor.layers.fused_moe.utils import _swiglu_limit_torch

    config = CONFIG_MAPPING["deepseek_v4"](swiglu_limit=1.5)
    with torch.device("meta"):
        theirs = DeepseekV4Experts(config)
    packed = 3 * torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    out = torch.empty(9, 24)
    _swiglu_limit_torch(out, packed, 1.5)
    torch.testing.assert_close(out, theirs._apply_gate(packed))
    _swiglu_limit_torch(out, packed, 0.0)  # as vLLM's own Transformers backend calls it
    assert not torch.allclose(out, theirs._apply_gate(packed), atol=0.5)


def test_an_ungated_activation_is_vllms() -> None:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation

    with torch.device("meta"):
        theirs = NemotronHExperts(CONFIG_MAPPING["nemotron_h"]())
    packed = torch.randn(9, 24, generator=torch.Generator().manual_seed(0))
    out = torch.empty(9, 24)
    apply_moe_activation(MoEActivation.RELU2_NO_MUL, out, packed.clone())
    torch.testing.assert_close(out, theirs.act_fn(packed))


def test_dense_experts_have_few_rows_only_if_zeros_stay_zeros() -> None:
    facts = block("llama4_text")
    known, router = facts.experts, facts.router
    assert isinstance(known, ExpertsFacts) and not isinstance(router, UnknownRouting)
    assert few_rows(facts) == router.top_k
    others: list[dict[str, Any]] = [
        {"experts": replace(known, down_bias="bias")},
        {"experts": replace(known, gate=Gate("sigmoid", None))},
        {"experts": replace(known, gate=replace(known.gate, up_offset=1.0))},
        {"router": replace(router, weights_on="output")},
        {"router": replace(router, experts=router.experts + 1)},
        {"router": UnknownRouting("another")},
    ]
    for change in others:
        assert few_rows(replace(facts, **change)) is None
        assert "every expert runs" in str(refusal(replace(facts, **change), cpu=False))


@pytest.mark.parametrize("count", [1, 2])
def test_the_rows_of_dense_experts_through_vllms_kernel(count: int) -> None:
    """transformers runs all experts on all copies; vLLM's kernel runs those that are not zero."""
    from vllm._custom_ops import cpu_fused_moe, cpu_prepack_moe_weight

    from neuron_autoport.hosts.vllm.moe import chosen_copies, put_back

    config = CONFIG_MAPPING["llama4_text"](
        hidden_size=64, intermediate_size=32, num_local_experts=5, num_experts_per_tok=count
    )
    theirs, router = Llama4TextExperts(config), Llama4Router(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in (*theirs.parameters(), *router.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator) / 8
    hidden = torch.randn(9, 64, generator=generator)
    with torch.no_grad():
        scores, _ = router(hidden)
        copies = hidden.repeat(5, 1) * scores.t().reshape(-1, 1)
        whole = theirs(copies)
    rows, indices = chosen_copies(copies, 5, count)
    assert rows.shape == (9 * count, 64) and (rows.abs().amax(-1) > 0).all()
    up = cpu_prepack_moe_weight(theirs.gate_up_proj.data.transpose(1, 2).contiguous(), "vec")
    down = cpu_prepack_moe_weight(theirs.down_proj.data.transpose(1, 2).contiguous(), "vec")
    made, once = torch.empty_like(rows), torch.ones(len(rows), 1)
    cpu_fused_moe(made, rows, up, down, None, None, once, indices.int(), "silu", "vec", False)
    torch.testing.assert_close(put_back(made, indices, 5, 9), whole, rtol=1e-4, atol=1e-4)


def test_identity_experts_are_none_of_vllms() -> None:
    """vLLM's layer gets as many experts as there are weights; those that hand on their input add nothing there.

    vLLM's own kernel, on the experts that have weights, is off by just what the others add.
    """
    from vllm._custom_ops import cpu_fused_moe, cpu_prepack_moe_weight

    config = CONFIG_MAPPING["longcat_flash"](
        hidden_size=64, expert_ffn_hidden_size=32, n_routed_experts=4, zero_expert_num=2
    )
    theirs = LongcatFlashExperts(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / 8
    rows = torch.randn(9, 64, generator=generator)
    indices = torch.rand(9, 6, generator=generator).topk(3, dim=-1).indices
    weights = torch.rand(9, 3, generator=generator)
    real = indices < 4
    assert real.any() and not real.all()
    up = cpu_prepack_moe_weight(theirs.gate_up_proj.data[:4].contiguous(), "vec")
    down = cpu_prepack_moe_weight(theirs.down_proj.data, "vec")
    out = torch.empty_like(rows)
    chosen = torch.where(real, indices, 0).to(torch.int32)
    cpu_fused_moe(out, rows, up, down, None, None, weights * real, chosen, "silu", "vec", False)
    with torch.no_grad():
        whole = theirs(rows, indices, weights)
    handed_on = rows * (weights * ~real).sum(-1, keepdim=True)
    assert (out - whole).abs().max() > 0.5
    torch.testing.assert_close(out + handed_on, whole, rtol=1e-4, atol=1e-4)
    facts = block("longcat_flash")
    assert "the experts are not understood" in str(refusal(facts, cpu=False))
    assert facts.reach == 12  # 8 with weights, 4 without
