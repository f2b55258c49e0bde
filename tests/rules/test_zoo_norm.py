"""Every RMS norm is fused by the rule of its own rounding order; look-alikes are left alone."""

from __future__ import annotations

import pytest

from neuron_autoport.rules.rule import Rule
from tests.helpers import check_all_rules, family, plan_of, proof_of, zoo_class
from tests.rules.norm_zoo import NEAR, NORMS, source_of


def whole_norms() -> tuple[Rule, ...]:
    """All norm rules but the one that takes what is left of a form that is not known."""
    return tuple(r for r in family("norm") if r.name != "rms_norm_fp32_weightless")


@pytest.mark.parametrize(
    ("body", "init", "expected"), [n[1:] for n in NORMS], ids=[n[0] for n in NORMS]
)
def test_zoo(body: str, init: str, expected: str) -> None:
    cls = zoo_class(source_of(body, init))
    plan = plan_of(cls, whole_norms())
    assert plan.trace.end is None, plan.trace.end
    full = [r for r in plan.refusals if r.steps == "all"]
    if expected.startswith("rms"):
        assert [s.rule.name for s in plan.sites] == [expected], plan.refusals
        proof = proof_of(cls, plan)
        assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"
        return
    assert not plan.sites, plan.new_source()
    check_all_rules(cls)
    if expected == NEAR:
        assert not full, full
        return
    assert {r.code for r in full} == {expected}, full
    assert full[0].span is not None and full[0].message


def test_epsilon_and_offset_come_from_the_graph() -> None:
    """The literal in the call is the value the module holds, not a default."""
    body = next(n[1] for n in NORMS if n[0] == "zero centred")
    plan = plan_of(zoo_class(source_of(body, "self.eps = 0.0625")))
    source = plan.new_source() or ""
    assert "NK.rms_norm(x, self.weight, eps=0.0625, offset=1.0, weight_in_fp32=True)" in source


@pytest.mark.parametrize("name", ["offset 0.5", "clamped weight", "layer norm", "groups"])
def test_what_is_left_of_a_form_that_is_not_known(name: str) -> None:
    """The rows are normalized by the kernel; what stands around stays in torch."""
    cls = zoo_class(source_of(*next((n[1], n[2]) for n in NORMS if n[0] == name)))
    plan = plan_of(cls, family("norm"))
    assert [s.rule.name for s in plan.sites] == ["rms_norm_fp32_weightless"]
    assert proof_of(cls, plan).passed


def test_fp32_input_is_left_alone() -> None:
    """With float32 inputs a cast to float32 is none: no rounding order can be read from that."""
    import torch

    from neuron_autoport.rewrite.plan import plan_class
    from tests.helpers import trace_of

    cls = zoo_class(source_of(NORMS[0][1], ""))
    assert not plan_class(trace_of(cls, torch.float32), whole_norms()).sites
