"""Paths that the trace did not take: the rewritten forward computes what the original does there, or stops.

Every module gets a second input that is None when it is traced. Whatever is fused, with that input given the rewritten
module must not silently ignore it.
"""

from __future__ import annotations

import copy
import textwrap

import pytest
import torch

from neuron_autoport.rewrite.install import install
from tests.helpers import family, generated_of, plan_of, real_instance, zoo_class

TEMPLATE = """
def h(v):
    return v.view(v.shape[0], v.shape[1], -1, D).transpose(1, 2)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(W, HEADS * D) for _ in range(3))
        self.gate, self.up, self.down = nn.Linear(W, I), nn.Linear(W, I), nn.Linear(I, W)
        self.mode, self.extra = 1, None

    def forward(self, x, other=None, flag=False):
{body}
"""
ATTEND = "return attend(self, h(q), h(k), h(v))[0]"
MLP = "return self.down(F.silu(self.gate(g)) * self.up(u))"

# (name, body, fused, with the second input it: equals the original, or stops)
CASES: list[tuple[str, str, bool, str]] = [
    ("another input if it is given", f"""
        c = other if other is not None else x
        q, k, v = self.q_proj(x), self.k_proj(c), self.v_proj(c)
        {ATTEND}""", True, "stops"),
    ("the other way round", f"""
        c = x if other is None else other
        q, k, v = self.q_proj(x), self.k_proj(c), self.v_proj(c)
        {ATTEND}""", True, "stops"),
    ("the condition has a name", f"""
        cross = other is not None
        q = self.q_proj(x)
        c = other if cross else x
        if cross and flag:
            k = v = c
        else:
            k, v = self.k_proj(c), self.v_proj(c)
        {ATTEND}""", True, "stops"),
    ("another condition", f"""
        cross = other is not None
        q = self.q_proj(x)
        c = other if cross else x
        if flag:
            k = v = x
        else:
            k, v = self.k_proj(c), self.v_proj(c)
        {ATTEND}""", False, "equal"),
    ("a condition bound again", f"""
        cross = other is not None
        q = self.q_proj(x)
        c = other if cross else x
        cross = flag
        if cross and flag:
            k = v = x
        else:
            k, v = self.k_proj(c), self.v_proj(c)
        {ATTEND}""", False, "equal"),
    ("all three of the other", f"""
        c = other if other is not None else x
        q, k, v = self.q_proj(c), self.k_proj(c), self.v_proj(c)
        {ATTEND}""", True, "equal"),
    ("chosen in the call itself", """
        return self.down(F.silu(self.gate(x)) * self.up(x if other is None else other))""", False,
     "equal"),
    ("bound in a branch", f"""
        g, u = x, x
        if other is not None:
            u = other
        {MLP}""", False, "equal"),
    ("bound in both branches", f"""
        g = x
        if other is None:
            u = x
        else:
            u = other
        {MLP}""", False, "equal"),
    ("the same name bound in a branch", """
        if other is not None:
            x = other
        return self.down(F.silu(self.gate(x)) * self.up(x))""", True, "equal"),
    ("what is computed of the other", f"""
        g, u = x, x if other is None else other * 2
        {MLP}""", False, "equal"),
    ("another name of it", f"""
        g = x
        u = g
        {MLP}""", True, "equal"),
    ("an inner value is chosen", """
        a = F.silu(self.gate(x))
        b = a if other is None else other.repeat(1, 1, 2)[..., :I]
        return self.down(b * self.up(x))""", False, "equal"),
    ("an inner value is bound in a branch", """
        a = F.silu(self.gate(x))
        if other is not None:
            a = other.repeat(1, 1, 2)[..., :I]
        return self.down(a * self.up(x))""", False, "equal"),
    ("a choice that is settled", f"""
        u = x if self.mode == 1 else other
        g = x if self.extra is None else self.extra
        {MLP}""", True, "equal"),
    ("a branch that is settled", f"""
        g = u = x
        if self.mode == 2:
            u = other
        {MLP}""", True, "equal"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "fused", "then"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_path_not_taken(body: str, fused: bool, then: str) -> None:
    text = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    cls = zoo_class(TEMPLATE.format(body=text))
    plan = plan_of(cls, family("attention", "mlp", "linear"))
    found = {s.rule.name for s in plan.sites}
    assert bool(found & {"qkv_proj", "gated_mlp"}) is fused, (plan.new_source(), plan.refusals)
    original = real_instance(cls)
    rewritten = copy.deepcopy(original)
    if plan.sites:
        install(rewritten, plan, generated_of(plan).classes[plan])
    x, other = torch.randn(2, 2, 5, 16, generator=torch.Generator().manual_seed(3)).unbind()
    torch.testing.assert_close(rewritten(x), original(x), rtol=1e-4, atol=1e-4)
    if then == "stops":
        with pytest.raises(NotImplementedError, match="is part of a fused call now"):
            rewritten(x, other)
        return
    for flag in (False, True):
        want = original(x, other, flag)
        torch.testing.assert_close(rewritten(x, other, flag), want, rtol=1e-4, atol=1e-4)


def test_a_refusal_names_what_is_told_apart() -> None:
    body = next(c[1] for c in CASES if c[0] == "bound in both branches")
    text = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    plan = plan_of(zoo_class(TEMPLATE.format(body=text)), family("mlp"))
    (refusal,) = [r for r in plan.refusals if r.rule == "gated_mlp"]
    assert refusal.code == "AP209" and refusal.span is not None
    assert refusal.message == "`x` is read as `g` and `u`, which another path may tell apart"
