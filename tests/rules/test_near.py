"""What looks like a known computation and is none has a code, a place, the nearest rule and how far that got."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.rewrite.near import ANCHORS
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.reasons import Refusal
from neuron_autoport.rules.library import load_rules
from tests.helpers import check_all_rules, fill, plan_of, proof_of, zoo_class
from tests.rules.mlp_zoo import TEMPLATE as MLP
from tests.rules.norm_zoo import TEMPLATE as NORM

PLAIN = "return x * torch.rsqrt({} + self.eps) * self.weight"
MEAN = "x.pow(2).mean(-1, keepdim=True)"


def near(body: str, init: str = "") -> tuple[Refusal, str]:
    """The one near miss of a norm, and the text it marks."""
    plan = plan_of(zoo_class(fill(NORM, body, init)))
    assert not plan.sites, plan.new_source()
    (refusal,) = [r for r in plan.refusals if r.code == "AP210"]
    return refusal, marked(refusal)


def marked(refusal: Refusal) -> str:
    assert refusal.span is not None
    line = Path(refusal.span.file).read_text(encoding="utf-8").splitlines()[refusal.span.line - 1]
    return line[refusal.span.column : refusal.span.end_column]


@pytest.mark.parametrize("mean", [MEAN, "(x * x).mean(-1).unsqueeze(-1)"])
def test_a_norm_in_the_inputs_dtype(mean: str) -> None:
    """All is rounded to bfloat16 at every step; no rule does, so it says where the first cast is missing."""
    refusal, text = near(PLAIN.format(mean))
    assert refusal.rule == "rms_norm" and refusal.steps == "1 of 9"
    assert refusal.message == (
        "its operations are all there, but not its rounding: expected a cast"
    )
    assert text == f"x * torch.rsqrt({mean} + self.eps)"


@pytest.mark.parametrize(
    ("body", "rule", "message"),
    [
        ("return F.rms_norm(x, (W,), self.weight)", "rms_norm_torch", "`eps` must be a number"),
        ("return F.rms_norm(x, (W,), self.weight + 1, 1e-5)", "rms_norm_torch",
         "`w` must be a parameter"),
        ("return F.layer_norm(x, (W,), self.weight + 1)", "layer_norm", "`w` must be a parameter"),
        ("return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps)",
         "rms_norm_fp32_weightless", "`x` must be in float32"),
        ("h = x.float()\nreturn h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + self.eps)",
         "rms_norm_fp32_weightless", "expected `mean`"),
    ],
)  # fmt: skip
def test_an_operation_of_norms_only(body: str, rule: str, message: str) -> None:
    refusal, text = near(body)
    assert (refusal.rule, refusal.message) == (rule, message)
    assert text and text in body


def test_torchs_module_without_an_epsilon() -> None:
    """Its epsilon is that of the input's dtype: a number in the new call would be one dtype's own."""
    source = "class Norm(nn.RMSNorm):\n    def __init__(self):\n        super().__init__(W{})\n"
    plan = plan_of(zoo_class(source.format("")))
    (refusal,) = plan.refusals
    assert (refusal.code, refusal.rule) == ("AP210", "rms_norm_torch")
    assert refusal.message == "`eps` must be a number" and marked(refusal).startswith("F.rms_norm(")
    plan = plan_of(zoo_class(source.format(", eps=1e-5")))
    assert [s.rule.name for s in plan.sites] == ["rms_norm_torch"] and not plan.refusals


@pytest.mark.parametrize(
    "put_back", [".unsqueeze(-1)", "[..., None]", "[:, :, None]", ".unsqueeze(2)"]
)
def test_a_mean_whose_axis_is_put_back_is_a_norm(put_back: str) -> None:
    body = f"""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1){put_back} + self.eps)
    return self.weight * h.to(x.dtype)"""
    cls = zoo_class(fill(NORM, body, ""))
    plan = plan_of(cls)
    assert [s.rule.name for s in plan.sites] == ["rms_norm"], plan.refusals
    proof = proof_of(cls, plan)
    assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"


def test_a_mean_without_its_axis_that_is_read_again_is_refused() -> None:
    body = """
    h = x.float()
    mean = h.pow(2).mean(-1)
    h = h * torch.rsqrt(mean[..., None] + self.eps)
    return self.weight * h.to(x.dtype), mean"""
    plan = plan_of(zoo_class(fill(NORM, body, "")))
    assert not plan.sites
    assert {r.code for r in plan.refusals if r.rule == "rms_norm"} == {"AP201"}


def test_what_is_rewritten_or_refused_otherwise_has_no_near_miss() -> None:
    for body in (
        "h = x.float()\nreturn self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, True) + 1e-6)).to(x.dtype)",
        "return F.rms_norm(x, (W,), self.weight, 1e-5)",
        "return x.sqrt() * x + self.weight",
        "return torch.rsqrt(x.exp())",
    ):
        plan = plan_of(zoo_class(fill(NORM, body, "")))
        assert not [r for r in plan.refusals if r.code == "AP210"], plan.refusals


def test_anchors_are_operations_of_the_rules() -> None:
    """One that no rule has would never be told."""
    assert frozenset[str]().union(*(r.operations for r in load_rules())) >= ANCHORS


# Activations in place.

ACT = "self.write = nn.SiLU(inplace=True)"
FRESH = {
    "a child": "return self.down(self.write(self.gate(x)) * self.up(x))",
    "by keyword": "g = self.write(input=self.gate(x))\nreturn self.down(g * self.up(x))",
    "a name": "g = self.gate(x)\ng = self.write(g)\nreturn self.down(g * self.up(x))",
}


def mlp(body: str) -> tuple[type, ClassPlan]:
    cls = zoo_class(fill(MLP, body, ACT))
    return cls, plan_of(cls, [r for r in load_rules() if r.name == "gated_mlp"])


@pytest.mark.parametrize("body", FRESH.values(), ids=FRESH)
def test_an_activation_over_a_value_of_its_own(body: str) -> None:
    cls, plan = mlp(body)
    assert [s.rule.name for s in plan.sites] == ["gated_mlp"], plan.refusals
    proof = proof_of(cls, plan)
    assert proof.passed, f"{proof.figures()}\n{plan.new_source()}"


SEEN = {
    "read after": ("g = self.gate(x)\na = self.write(g)\n"
                   "return self.down(a * self.up(x)) + g.sum()", "AP201"),
    "read before": ("g = self.gate(x)\ns = g.sum()\n"
                    "return self.down(self.write(g) * self.up(x)) + s", "AP201"),
    "a statement": ("g = self.gate(x)\nself.write(g)\nreturn self.down(g * self.up(x))", "AP204"),
    "a statement of a function": ("g = self.gate(x)\nF.silu(g, inplace=True)\n"
                                  "return self.down(g * self.up(x))", "AP204"),
    "through a view": ("g = self.gate(x)\nv = g.view(-1)\n"
                       "return self.down(self.write(g) * self.up(x)) + v.sum()", "AP201"),
    "of a function": ("return self.down(F.silu(self.gate(x), inplace=True) * self.up(x))", "AP204"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "code"), SEEN.values(), ids=SEEN)
def test_an_activation_over_a_value_that_is_seen_elsewhere(body: str, code: str) -> None:
    _, plan = mlp(body)
    assert not plan.sites, plan.new_source()
    (refusal,) = [r for r in plan.refusals if r.rule == "gated_mlp"]
    assert refusal.code == code and refusal.steps == "all" and refusal.span is not None
    check_all_rules(zoo_class(fill(MLP, body, ACT)))
