"""A child module called by keyword is called as by place: same sites, same numbers; other calls are left alone."""

from __future__ import annotations

import pytest

from neuron_autoport.trace.arguments import positional
from tests.helpers import family, plan_of, proof_of, zoo_class

CHILDREN = """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))

    def forward(self, hidden_states, gate=None, *, scale=None):
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = self.weight * wide.to(hidden_states.dtype)
        return normed if gate is None else normed * gate


class Maps(nn.Linear):
    def forward(self, rows, **kwargs):
        return super().forward(rows)


class Open(nn.Linear):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Only(nn.Linear):
    def forward(self, *, input):
        return super().forward(input)
"""
MLP = (
    CHILDREN
    + """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = {gate}(W, I), nn.Linear(W, I), nn.Linear(I, W)
        self.act = nn.SiLU()

    def forward(self, x):
        {body}
"""
)
PLAIN = "return self.down(self.act(self.gate(x)) * self.up(x))"
SAME = {
    "projections": "return self.down(input=self.act(self.gate(input=x)) * self.up(input=x))",
    "the activation": "return self.down(self.act(input=self.gate(x)) * self.up(input=x))",
    "one of them": PLAIN.replace("up(x)", "up(input=x)"),
    "on several lines": "g = self.gate(\n            input=x,\n        )\n"
    "        return self.down(input=self.act(g) * self.up(input=x))",
    "a value with a name": "h = x + 1\n        return self.down(self.act(self.gate(input=h)) * self.up(input=h))",
}  # fmt: skip


@pytest.mark.parametrize("body", SAME.values(), ids=SAME)
def test_projections_by_keyword(body: str) -> None:
    by_keyword = zoo_class(MLP.format(gate="nn.Linear", body=body))
    by_place = zoo_class(MLP.format(gate="nn.Linear", body=body.replace("input=", "")))
    rules = family("mlp", "linear")
    plan, other = plan_of(by_keyword, rules), plan_of(by_place, rules)
    assert [s.rule.name for s in plan.sites] == [s.rule.name for s in other.sites] != []
    assert plan.new_source() == (other.new_source() or "").replace("input=", "")
    proof = proof_of(by_keyword, plan)
    assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"


LAYER = (
    CHILDREN
    + """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm = Maps(W, W), Norm()

    def forward(self, x):
        x = x + self.mix({mix})
        return x, self.norm({norm})
"""
)


@pytest.mark.parametrize(
    ("mix", "norm"), [("rows=x", "hidden_states=x"), ("x", "gate=None, hidden_states=x")]
)
def test_a_norm_behind_a_sum_by_keyword(mix: str, norm: str) -> None:
    cls = zoo_class(LAYER.format(mix=mix, norm=norm))
    plan = plan_of(cls, family("norm"))
    assert [s.rule.name for s in plan.sites] == ["add_rms_norm"], plan.refusals
    proof = proof_of(cls, plan)
    assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"


@pytest.mark.parametrize(
    ("mix", "norm"),
    [
        ("x", "hidden_states=x, gate=x"),  # it does more than the norm
        ("x", "hidden_states=x, scale=x"),  # only known by keyword
    ],
)
def test_a_norm_that_is_given_more_is_left_alone(mix: str, norm: str) -> None:
    plan = plan_of(zoo_class(LAYER.format(mix=mix, norm=norm)), family("norm"))
    assert not plan.sites, plan.new_source()


@pytest.mark.parametrize("kind", ["Open", "Only"])
def test_a_child_without_such_a_place_is_left_alone(kind: str) -> None:
    """`*args` has no names, and what only a keyword gives has no place."""
    cls = zoo_class(MLP.format(gate=kind, body=SAME["projections"]))
    assert not [s for s in plan_of(cls).sites if "gate" in s.modules]


@pytest.mark.parametrize("given", ["x=x", "inputs=x", "input=x, other=x"])
def test_a_wrong_keyword_is_left_alone(given: str) -> None:
    """The call fails in eager, too: the child's trace ends there, and no site takes it."""
    cls = zoo_class(MLP.format(gate="nn.Linear", body=PLAIN.replace("gate(x)", f"gate({given})")))
    plan = plan_of(cls)
    (gate,) = [c.trace for c in plan.trace.children if c.path == "gate"]
    assert gate.end is not None and "unexpected keyword" in gate.end.message
    assert not [s for s in plan.sites if "gate" in s.modules]


@pytest.mark.parametrize(("more", "sites"), [(", training=True", []), ("", ["gated_mlp"])])
def test_a_keyword_that_only_the_child_knows_is_left_alone(more: str, sites: list[str]) -> None:
    """`**kwargs` of a child may hold anything; such a call is not that of a linear map alone."""
    cls = zoo_class(MLP.format(gate="Maps", body=PLAIN.replace("gate(x)", f"gate(rows=x{more})")))
    assert [s.rule.name for s in plan_of(cls, family("mlp")).sites if s.modules] == sites


@pytest.mark.parametrize(
    ("before", "gate", "up"),
    [('given = {"input": x + 1}', "**given", "**given"), ("rest = (x + 1,)", "*rest", "*rest")],
)
def test_a_spread_argument_has_no_text(before: str, gate: str, up: str) -> None:
    body = f"{before}\n        return self.down(self.act(self.gate({gate})) * self.up({up}))"
    plan = plan_of(zoo_class(MLP.format(gate="nn.Linear", body=body)), family("mlp"))
    assert not [s for s in plan.sites if s.modules], plan.new_source()
    assert "AP207" in {r.code for r in plan.refusals}


def test_a_place_behind_a_spread_list_is_not_the_first() -> None:
    """`self.gate(*rest, y)` gives `y` second: its first argument has no text."""
    source = """
class Scaled(nn.Linear):
    def forward(self, x, y=None):
        return super().forward(x)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = Scaled(W, I), Scaled(W, I), nn.Linear(I, W)

    def forward(self, x):
        rest, y = (x + 1,), None
        return self.down(F.silu(self.gate(*rest, y)) * self.up(*rest, y))
"""
    plan = plan_of(zoo_class(source), family("mlp"))
    assert not [s for s in plan.sites if s.modules], plan.new_source()
    assert "AP207" in {r.code for r in plan.refusals}


def test_places() -> None:
    """By hand, from the signatures."""

    def plain(self, a, b=None, c=None): ...
    def rest(self, a, *args, b=None): ...
    def first(self, a, /, b): ...
    def named(self, a, *, b=None, **more): ...

    assert positional(plain, [], {"b": 2, "a": 1}) == ([1, 2], {})
    assert positional(plain, [1], {"c": 3}) == ([1], {"c": 3})
    assert positional(plain, [1], {"c": 3, "b": 2}) == ([1, 2, 3], {})
    assert positional(rest, [], {"a": 1}) == ([], {"a": 1})
    assert positional(first, [1], {"b": 2}) == ([1], {"b": 2})
    assert positional(named, [], {"a": 1, "b": 2, "d": 4}) == ([1], {"b": 2, "d": 4})
