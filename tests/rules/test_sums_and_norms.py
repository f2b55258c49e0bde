"""Residual sums and the norms that read them, across the border of modules: rows P41 and P49 of `test_pains.py`."""

from __future__ import annotations

import pytest
import torch

from neuron_autoport.port import plan_trace
from neuron_autoport.report.summary import count_sites
from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import family, plan_of, proof_of, zoo_class
from tests.rules.more_norm_zoo import RMS


def named(plan: ClassPlan) -> list[str]:
    return sorted(s.rule.name for s in plan.sites)


LAYER = (
    RMS
    + """

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = RMS(), nn.Linear(W, W)

    def forward(self, x):
        s = x + self.mix(x)
        {body}
"""
)


def test_a_sum_that_is_returned_is_still_there() -> None:
    cls = zoo_class(LAYER.replace("{body}", "return self.norm(s), s, s.mean()"))
    plan = plan_of(cls, family("norm"))
    assert named(plan) == ["add_rms_norm"] and proof_of(cls, plan).passed


BETWEEN = {
    "s.view(2, 7, W)": None,
    "s.to(x.dtype)": ("AP201", "also read by the code that stays"),
    "s.contiguous()": ("AP201", "also read by the code that stays"),
    "s.view(-1, W)": ("AP210", "`s` is reshaped in between"),
    "s.reshape(-1, W).view(x.shape)": ("AP210", "`s` is reshaped in between"),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_cast_or_view_between_sum_and_norm(between: str) -> None:
    """Sum and norm are taken together, or the report says what stands between; the norm alone is still fused."""
    cls = zoo_class(LAYER.replace("{body}", f"return self.norm({between}), s"))
    plan = plan_of(cls, family("norm"))
    refused = [(r.code, r.message) for r in plan.refusals if r.rule == "add_rms_norm"]
    wanted = BETWEEN[between]
    if wanted is None:
        assert named(plan) == ["add_rms_norm"] and not refused
        assert proof_of(cls, plan).passed
    else:
        ((code, message),) = refused
        assert not plan.sites and code == wanted[0] and wanted[1] in message
        assert all(r.span is not None for r in plan.refusals)
    norm = next(child.trace for child in plan.trace.children if child.path == "norm")
    assert named(plan_class(norm, family("norm"))) == ["rms_norm"]


def test_the_count_of_sites_says_n_of_m() -> None:
    """One of two sums with norms has a view between; the report says one of two."""
    source = (
        LAYER.replace("{body}", "return self.norm(s), s")
        + """

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = RMS(), RMS()

    def forward(self, x):
        s = x + x.tanh()
        t = x + x.sin()
        return self.one(s), self.two(t.view(-1, W)), s, t
"""
    )
    with torch.device("meta"):
        model = zoo_class(source)().to(torch.bfloat16)
    x = torch.empty(2, 7, 16, dtype=torch.bfloat16, device="meta")
    port = plan_trace(model, trace_model(model, (x,)), family("norm"))
    fused, refused = count_sites(port)
    assert (fused["add_rms_norm"], fused["rms_norm"], refused) == (1, 2, 1)
