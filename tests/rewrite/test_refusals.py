"""Forwards whose source cannot be rewritten, and that every reason code has a case that gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.reasons import CODES
from tests.helpers import few, plan_of, zoo_class

HEAD = """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(W, I), nn.Linear(W, I), nn.Linear(I, W)
"""


def only_refusal(plan: ClassPlan) -> tuple[str, str]:
    assert not plan.sites and plan.new_source() is None
    (refusal,) = [r for r in plan.refusals if r.steps == "all"]
    assert refusal.rule == "gated_mlp"
    return refusal.code, refusal.message


def test_a_class_made_inside_a_function() -> None:
    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(16, 24), nn.Linear(16, 24)
            self.down = nn.Linear(24, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(F.silu(self.gate(x)) * self.up(x))

    code, message = only_refusal(plan_of(MLP, few()))
    assert code == "AP208" and "inside a function" in message


def test_a_forward_that_closes_over_names() -> None:
    cls = zoo_class(HEAD + """
def closing(scale):
    def forward(self, x):
        return scale * self.down(F.silu(self.gate(x)) * self.up(x))
    return forward

MLP.forward = closing(2)
""")  # fmt: skip
    code, message = only_refusal(plan_of(cls, few()))
    assert code == "AP208" and "closes over scale" in message


@pytest.mark.parametrize("where", ["a local name", "a name of the module"])
def test_a_forward_that_means_something_else_by_the_name_of_our_functions(where: str) -> None:
    local = where == "a local name"
    before, inner = ("", "NF = 2") if local else ("\nNF = 2\n", "pass")
    cls = zoo_class(HEAD + f"""
    def forward(self, x):
        {inner}
        return NF * self.down(F.silu(self.gate(x)) * self.up(x))
{before}""")  # fmt: skip
    code, message = only_refusal(plan_of(cls, few()))
    assert code == "AP208" and "meaning of its own for NF" in message


def test_a_forward_that_calls_super() -> None:
    cls = zoo_class(HEAD + """
    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

class Sub(MLP):
    def forward(self, x):
        return super().forward(x) * 2
""")  # fmt: skip
    code, message = only_refusal(plan_of(cls, few()))
    assert code == "AP208" and "__class__" in message


def test_an_inherited_forward_is_rewritten_in_the_subclass() -> None:
    cls = zoo_class(HEAD + """
    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

class Sub(MLP):
    pass
""")  # fmt: skip
    plan = plan_of(cls, few())
    assert cls.__name__ == "Sub" and [s.rule.name for s in plan.sites] == ["gated_mlp"]


def test_a_forward_without_source() -> None:
    space: dict[str, object] = {"nn": nn, "F": F, "W": 16, "I": 24, "__name__": "nowhere"}
    code = HEAD + (
        "    def forward(self, x):\n        return self.down(F.silu(self.gate(x)) * self.up(x))\n"
    )
    exec(compile(code, "<text>", "exec"), space)
    cls = space["MLP"]
    assert isinstance(cls, type)
    assert only_refusal(plan_of(cls, few()))[0] == "AP208"


def test_a_rule_left_out_is_named() -> None:
    from neuron_autoport.rewrite.plan import plan_class
    from tests.helpers import trace_of

    cls = zoo_class(HEAD + """
    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))
""")  # fmt: skip
    plan = plan_class(trace_of(cls), few(), without=frozenset({"MLP:gated_mlp"}))
    assert plan.without == ("gated_mlp",) and not plan.sites
    other = plan_class(trace_of(cls), few(), without=frozenset({"Other:gated_mlp"}))
    assert other.without == () and len(other.sites) == 1


def test_every_structural_reason_has_a_case() -> None:
    folder = Path(__file__).resolve().parent.parent
    text = "".join(p.read_text(encoding="utf-8") for p in (folder / "rules").glob("*_zoo.py"))
    text += Path(__file__).read_text(encoding="utf-8")
    tested = set(re.findall(r"\"(AP\d+)\"", text)) | {"AP210"}
    tested |= {"AP220"}  # in tests/trace/test_router_zoo.py
    assert {c for c in CODES if c.startswith("AP2")} <= tested
