"""Faults that users of comparable systems met, where they are about matching: each is a test.

`WHERE` lists them, by what went wrong, with the test that holds it; those named `here` follow below.
"""

from __future__ import annotations

import importlib
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.architectures import default_config
from neuron_autoport.models.weights import adversarial_
from neuron_autoport.port import Port, plan_trace, port_model
from neuron_autoport.prove.modules import Call, prove_module
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import family, generated_of, plan_of, proof_of, small_config, zoo_class

WHERE = {
    "P1: scale of the embedding lost": "rewrite.test_embedding_scale:test_the_embedding_keeps_its_scale",
    "P2: a norm over all heads taken for one per head": "here:test_full_width_query_norms",
    "P3: scale taken from head_dim": "here:test_the_scale_is_the_graphs",
    "P4: residual multipliers missed": "here:test_residual_multipliers_stay",
    "P5: soft-cap ignored": "here:test_soft_cap_and_windows_stay",
    "P6: window of some layers given to all": "trace.test_models:"
    "test_window_and_full_layers_are_told_apart_by_what_they_read",
    "P7: head sizes differ between layers": "here:test_layers_of_two_head_sizes",
    "P8: no value projection in some layers": "here:test_layers_without_a_value_projection",
    "P9: latent attention taken for a plain one": "here:test_latent_attention_is_no_plain_one",
    "P10: width of a weightless norm guessed": "here:test_the_width_of_a_weightless_norm",
    "P11: 1 + w in another dtype": "here:test_one_plus_a_float32_weight",
    "P12: renormalization guessed from the configuration": "trace.test_router:"
    "test_a_gated_shared_expert_is_told_from_a_plain_one",
    "P16: code of its own without a base class": "cli.test_own_code:"
    "test_p16_a_model_without_base_class_is_inspected_and_says_what_stops_port",
    "P18: traced again for every layer": "trace.test_models:"
    "test_one_trace_per_class_however_many_layers",
    "P19: a child that no rule knows": "rules.test_unknown_children:"
    "test_a_child_that_no_rule_knows_stays",
    "P20: width of a rotary embedding lost": "report.test_rotary:"
    "test_a_factor_that_the_configuration_has_lost",
    "P21: default epsilon": "rules.test_properties:test_epsilon_is_read_not_assumed",
    "P26: window not passed on": "here:test_soft_cap_and_windows_stay",
    "P28: features dropped": "here:test_soft_cap_and_windows_stay",
    "P29: rotary pairs over the whole head": "here:test_partial_rotary_is_not_whole",
    "P30: gate of the attention bypassed": "here:test_the_gate_of_an_attention_stays",
    "P31: no 1 + w in the kernel": "here:test_one_plus_a_float32_weight",
    "P40: an input of later code overwritten": "rules.test_zoo_more:test_zoo",
    "P41: residual sum also returned": "rules.test_sums_and_norms:"
    "test_a_sum_that_is_returned_is_still_there",
    "P42: rotary embedding and norm exchanged": "here:test_norm_before_and_after_rotary",
    "P45: literals, defaults and axes ignored": "trace.test_canonical:test_canonical",
    "P46: a head size as a constant": "rules.test_properties:"
    "test_projections_of_every_head_size_and_order",
    "P47: right at one size only": "rules.test_properties:test_every_spelling_of_an_rms_norm",
    "P49: a cast or a view between": "rules.test_sums_and_norms:"
    "test_a_cast_or_view_between_sum_and_norm",
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
def test_every_fault_has_its_test(where: str) -> None:
    module, _, name = where.partition(":")
    space = globals() if module == "here" else vars(importlib.import_module(f"tests.{module}"))
    assert callable(space[name])


def named(plan: ClassPlan) -> list[str]:
    return sorted(s.rule.name for s in plan.sites)


def ported(model_type: str, **fields: object) -> Port:
    return port_model(small_config(model_type, **fields), load_rules())


@pytest.mark.parametrize("model_type", ["olmo2", "olmoe"])
def test_full_width_query_norms(model_type: str) -> None:
    """The norm reads what the projection gives, all heads in one row, and is fused as that."""
    port = port_model(default_config(model_type), load_rules())
    (site,) = port.where["model.layers.0.self_attn.q_norm"].sites
    query = port.model.get_submodule("model.layers.0.self_attn.q_proj").out_features
    assert site.match.values["x"].shape[-1] == query
    assert not any("qk_norm" in name for name in named(port.where["model.layers.0.self_attn"]))


def test_the_scale_is_the_graphs() -> None:
    port = ported("gemma2", head_dim=8, query_pre_attn_scalar=16)
    site = next(s for _, s in port.sites() if s.rule.name == "qkv_proj")
    assert site.found["scale"] == "0.25"  # 16 ** -0.5, not 8 ** -0.5


def test_residual_multipliers_stay() -> None:
    port = ported("granite", residual_multiplier=0.22)
    plan = port.where["model.layers.0"]
    text = plan.new_source() or ""
    assert not plan.sites or text.count("self.residual_multiplier") == 2


@pytest.mark.parametrize(
    ("model_type", "kept"),
    [("gemma2", ("sliding_window=self.sliding_window", "softcap=")),
     ("mistral", ("sliding_window=",)), ("gemma3_text", ("sliding_window=self.sliding_window",))],
)  # fmt: skip
def test_soft_cap_and_windows_stay(model_type: str, kept: tuple[str, ...]) -> None:
    plan = ported(model_type).where["model.layers.0.self_attn"]
    text = plan.new_source() or ""
    assert "qkv_proj" in named(plan) and all(part in text for part in kept)


ATTENTION = """
CONFIG = Config()


class Attention(nn.Module):
    def __init__(self, head, value=True):
        super().__init__()
        self.config, self.head = CONFIG, head
        self.q_proj, self.k_proj = nn.Linear(W, 2 * head), nn.Linear(W, 2 * head)
        self.v_proj = nn.Linear(W, 2 * head) if value else None
        self.o_proj = nn.Linear(2 * head, W)

    def forward(self, x):
        b, s, _ = x.shape
        q = self.q_proj(x).view(b, s, -1, self.head).transpose(1, 2)
        k = self.k_proj(x).view(b, s, -1, self.head).transpose(1, 2)
        v = {value}
        a, _ = attend(self, q, k, v)
        return self.o_proj(a.reshape(b, s, -1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([{layers}])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x
"""


VALUE = "self.v_proj(x).view(b, s, -1, self.head).transpose(1, 2)"


def layers(text: str, value: str = VALUE) -> list[ClassPlan]:
    """The plans of the layers of a model of attentions."""
    with torch.device("meta"):
        source = ATTENTION.replace("{layers}", text).replace("{value}", value)
        model = zoo_class(source)().to(torch.bfloat16).eval()
    for layer in model.layers:
        layer.config._attn_implementation = TRACE_ATTENTION
    x = torch.empty(2, 7, 16, dtype=torch.bfloat16, device="meta")
    port = plan_trace(model, trace_model(model, (x,)), family("attention"))
    return [port.where[f"layers.{i}"] for i in range(len(model.layers))]


def test_layers_of_two_head_sizes() -> None:
    plans = layers("Attention(8), Attention(16), Attention(8)")
    assert plans[0] is plans[2] and plans[0] is not plans[1]
    sizes = [next(w.sizes for s in p.sites for w in s.weights if w.shard == "heads") for p in plans]
    assert sizes == [(16, 16, 16), (32, 32, 32), (16, 16, 16)]


def test_layers_without_a_value_projection() -> None:
    """Even layers are fused; in odd ones the value is the key, which the rule of their site says."""
    value = f"k if self.v_proj is None else {VALUE}"
    even, odd = layers("Attention(8), Attention(8, value=False)", value)
    assert named(even) == ["o_proj", "qkv_proj"] and named(odd) == ["o_proj", "qk_proj"]
    (site,) = [s for s in odd.sites if s.rule.name == "qk_proj"]
    assert "the value is made from the key" in site.rule.summary and site.weights[0].sizes == (
        16,
        16,
    )
    assert "v = k if self.v_proj is None" in (odd.new_source() or "")
    made: Any
    for plan, has_value in ((even, True), (odd, False)):
        made = plan.trace.module_class
        module = made(8, has_value)
        module.config = SimpleNamespace(_attn_implementation="eager")
        adversarial_(module)
        generator = torch.Generator().manual_seed(1)
        calls: list[Call] = [((torch.randn(2, 7, 16, generator=generator),), {})]
        proof = prove_module("", module, plan, generated_of(plan).classes[plan], calls)
        assert proof.passed, proof.figures()


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "minicpm3"])
def test_latent_attention_is_no_plain_one(model_type: str) -> None:
    port = port_model(default_config(model_type), load_rules())
    names = named(port.where["model.layers.0.self_attn"])
    assert not {"qkv_proj", "qkv_proj_packed", "qkv_gate_proj"} & set(names)


def norm_of(width: int, body: str, init: str = "pass") -> type[nn.Module]:
    source = f"""
    class Norm(nn.Module):
        INPUTS = [(2, 7, {width})]

        def __init__(self):
            super().__init__()
            {init}

        def forward(self, x):
            h = x.float()
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
            return {body}
    """
    return zoo_class(textwrap.dedent(source))


def test_the_width_of_a_weightless_norm() -> None:
    cls = norm_of(72, "h.to(x.dtype)")
    plan = plan_of(cls, family("norm"))
    (site,) = plan.sites
    assert (site.rule.name, site.match.values["x"].shape) == ("rms_norm_weightless", (2, 7, 72))
    assert proof_of(cls, plan).passed


def test_one_plus_a_float32_weight() -> None:
    cls = norm_of(16, "(h * (1.0 + self.weight.float())).type_as(x)",
                  "self.weight = nn.Parameter(torch.zeros(16))")  # fmt: skip
    plan = plan_of(cls, family("norm"))
    assert named(plan) == ["rms_norm_zero_centered"]
    assert "offset=1.0" in (plan.new_source() or "") and proof_of(cls, plan).passed


@pytest.mark.parametrize("model_type", ["gpt_neox", "phi"])
def test_partial_rotary_is_not_whole(model_type: str) -> None:
    port = port_model(default_config(model_type), load_rules())
    rotary = {s.rule.name for _, s in port.sites() if s.rule.path.parent.name == "rope"}
    assert rotary <= {"rope_partial_pair"}


def test_the_gate_of_an_attention_stays() -> None:
    """AFMoE: sigmoid of a projection of the input, times the attention, before the output projection."""
    port = port_model(default_config("afmoe"), load_rules())
    plan = port.where["model.layers.0.self_attn"]
    assert ".sigmoid" in (plan.new_source() or "torch.sigmoid")
    for site in plan.sites:
        assert site.rule.name != "o_proj" or site.match.values["x"].name != "attention"


def test_norm_before_and_after_rotary() -> None:
    """Qwen3 norms each head before it turns it; a twin that does it after keeps its own order."""
    source = """
    def half(v):
        a, b = v[..., :4], v[..., 4:]
        return torch.cat((-b, a), dim=-1)


    class Heads(nn.Module):
        INPUTS = [(2, 4, 7, 8), (1, 7, 8), (1, 7, 8)]

        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(8, eps=1e-5)
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, q, cos, sin):
            c, s = cos.unsqueeze(1), sin.unsqueeze(1)
            {body}
            return q
    """
    turn, norm = "q = q * c + half(q) * s", "q = self.norm(q)"
    outputs = []
    for lines in ((norm, turn), (turn, norm)):
        body = "\n            ".join(lines)
        cls = zoo_class(
            textwrap.dedent(source).replace("{body}", body.replace("    " * 3, " " * 8))
        )
        plan = plan_of(cls)
        assert not plan.sites or proof_of(cls, plan).passed
        text = plan.new_source() or "\n".join(lines)
        outputs.append(text.index("norm(") < (text.index("rope(") if "rope(" in text else
                                              text.index("half(")))  # fmt: skip
    assert outputs == [True, False]
