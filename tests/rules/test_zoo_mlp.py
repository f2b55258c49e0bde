"""Gated MLPs are fused and right; look-alikes are not, and say why."""

from __future__ import annotations

import pytest

from tests.helpers import check_all_rules, family, plan_of, proof_of, zoo_class
from tests.rules.mlp_zoo import FUSED, GATED, NEAR, PACKED, PACKED_INIT, source_of

CASES = [("gated_mlp", *entry) for entry in GATED]
CASES += [
    ("gated_mlp_packed", f"packed, {name}", body, f"{PACKED_INIT}\n{init}", expected)
    for name, body, init, expected in PACKED
]


@pytest.mark.parametrize(
    ("rule", "body", "init", "expected"), [c[:1] + c[2:] for c in CASES], ids=[c[1] for c in CASES]
)
def test_zoo(rule: str, body: str, init: str, expected: str) -> None:
    cls = zoo_class(source_of(body, init))
    plan = plan_of(cls, [r for r in family("mlp") if r.role != "act_and_mul"])
    assert plan.trace.end is None, plan.trace.end
    if expected == FUSED:
        assert [s.rule.name for s in plan.sites] == [rule], plan.refusals
        proof = proof_of(cls, plan)
        assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"
        return
    assert not plan.sites, plan.new_source()
    check_all_rules(cls)
    full = [r for r in plan.refusals if r.steps == "all"]
    if expected == NEAR:
        assert not full, full
        return
    assert {r.code for r in full} == {expected}, full
    assert full[0].span is not None and full[0].message
