"""Layer norms, sums with norms, ungated MLPs, rotary embeddings, stacked maps: none noisy, none missing."""

from __future__ import annotations

import pytest

from neuron_autoport.rules.library import load_rules
from tests.helpers import check_all_rules, plan_of, proof_of, zoo_class
from tests.rules.more_zoo import FAMILIES, MORE, Entry, source_of


@pytest.mark.parametrize("entry", MORE, ids=[f"{e[0]}: {e[1]}" for e in MORE])
def test_zoo(entry: Entry) -> None:
    family, _, _, _, expected = entry
    cls = zoo_class(source_of(entry))
    rules = [r for r in load_rules() if r.name in FAMILIES[family]]
    plan = plan_of(cls, rules)
    assert plan.trace.end is None, plan.trace.end
    assert tuple(s.rule.name for s in plan.sites) == expected, plan.refusals
    if plan.sites:
        proof = proof_of(cls, plan)
        assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"
    check_all_rules(cls)
