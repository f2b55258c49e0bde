"""Projections of attentions: fused by dataflow, not by name; look-alikes are left alone."""

from __future__ import annotations

import pytest

from tests.helpers import check_all_rules, family, plan_of, proof_of, zoo_class
from tests.rules.attention_zoo import ATTENTIONS, source_of


@pytest.mark.parametrize(
    ("body", "init", "rules", "codes"), [a[1:] for a in ATTENTIONS], ids=[a[0] for a in ATTENTIONS]
)
def test_zoo(body: str, init: str, rules: tuple[str, ...], codes: set[str]) -> None:
    cls = zoo_class(source_of(body, init))
    plan = plan_of(cls, family("attention"))
    assert plan.trace.end is None, plan.trace.end
    full = [r for r in plan.refusals if r.steps == "all"]
    assert tuple(sorted(s.rule.name for s in plan.sites)) == rules, (full, plan.new_source())
    assert {r.code for r in full} == codes, full
    assert all(r.span is not None and r.message for r in full)
    proof = proof_of(cls, plan)
    assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"
    check_all_rules(cls)
