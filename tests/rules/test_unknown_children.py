"""A module with more in it than a rule asks for: the rest stays where it is."""

from __future__ import annotations

from tests.helpers import plan_of, proof_of, zoo_class

MORE = """
class Doubled(nn.Module):
    def forward(self, x):
        return x + x


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(W, 32), nn.Linear(W, 32)
        self.down_proj, self.mlp_AR = nn.Linear(32, W), Doubled()

    def forward(self, x):
        return self.mlp_AR(self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))
"""


def test_a_child_that_no_rule_knows_stays() -> None:
    """Some backends look children up by name, and break at one they do not know."""
    plan = plan_of(zoo_class(MORE))
    assert [site.rule.name for site in plan.sites] == ["gated_mlp"]
    assert "self.mlp_AR(NF.mlp(" in "".join((plan.new_source() or "").split())
    assert proof_of(zoo_class(MORE), plan).passed
