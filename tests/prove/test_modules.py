"""The proof of one module: what it compares, and that it gives the same figures every time."""

from __future__ import annotations

from tests.helpers import plan_of, proof_of, zoo_class
from tests.rules.mlp_zoo import source_of

DROPOUT = "return self.down(F.dropout(self.act(self.gate(x)) * self.up(x), 0.5, True))"


def test_what_a_module_draws_at_random_is_the_same_in_both_forms() -> None:
    cls = zoo_class(source_of(DROPOUT, ""))
    plan = plan_of(cls)
    assert plan.sites  # the two projections around the random part
    first, second = proof_of(cls, plan), proof_of(cls, plan)
    assert first.passed, first.figures()
    assert first == second
