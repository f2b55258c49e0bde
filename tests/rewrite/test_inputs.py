"""How a new call reads its inputs where the old code had no name for them: of a line only the input's part stays."""

from __future__ import annotations

import textwrap

import pytest

from tests.helpers import plan_of, proof_of, zoo_class
from tests.rules.more_norm_zoo import RMS

CLASS = (
    RMS.replace("RMS", "Norm")
    + """

def half(v):
    a, b = v[..., : v.shape[-1] // 2], v[..., v.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


def rotate(q, k, cos, sin):
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    a = q * cos + half(q) * sin
    b = k * cos + half(k) * sin
    return a, b


class M(nn.Module):
    INPUTS = [(2, 7, 3, 16), (2, 7, 16), (2, 7, 16)]

    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = Norm(), Norm()
        self.q_proj, self.k_proj = nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x, cos, sin):
{body}
"""
)
# why -> (lines before the call, the same afterwards)
KEPT = {
    "a part of the line": (
        """
        q = self.q_norm(self.q_proj(x))  # the query
        k = self.k_norm(self.k_proj(x))
        """,
        """
        q = self.q_proj(x)  # the query
        k = self.k_proj(x)
        """,
    ),
    "nothing of the line: the name holds it before, too": (
        """
        q, k = self.q_proj(x), self.k_proj(x)
        q = self.q_norm(q)
        k = self.k_norm(k)
        """,
        """
        q, k = self.q_proj(x), self.k_proj(x)
        """,
    ),
}
CALL = """
a, b = rotate(q, k, cos, sin)
return a, b
"""


def source(lines: str, call: str = CALL) -> str:
    text = textwrap.dedent(lines).strip() + "\n" + textwrap.dedent(call).strip()
    return CLASS.replace("{body}", textwrap.indent(text, " " * 8))


@pytest.mark.parametrize(("before", "after"), KEPT.values(), ids=KEPT)
def test_the_part_that_stays(before: str, after: str) -> None:
    cls = zoo_class(source(before))
    plan = plan_of(cls)
    assert [s.rule.name for s in plan.sites] == ["qk_norm_rope_heads_first"], plan.refusals
    text = plan.new_source() or ""
    assert textwrap.indent(textwrap.dedent(after).strip(), " " * 4) in textwrap.dedent(text)
    assert "self.q_norm(" not in text and "NK.qk_norm_rope(\n        q,\n        k," in text
    assert proof_of(cls, plan).passed


NAME_READ = """
a, b = rotate(q, k, cos, sin)
if x.shape[0] == 1:
    a = a + q
return a, b
"""
SHAPE_READ = """
a, b = rotate(q, k, cos, sin)
return a.view(q.shape), b
"""
BOUND_AGAIN = """
if x.shape[0] == 1:
    q = x
a, b = rotate(q, k, cos, sin)
return a, b
"""


@pytest.mark.parametrize("before", [lines for lines, _ in KEPT.values()], ids=KEPT)
@pytest.mark.parametrize(
    ("call", "codes"),
    [(NAME_READ, {"AP201"}), (SHAPE_READ, {"AP201"}), (BOUND_AGAIN, {"AP209"})],
)
def test_a_name_that_other_code_reads(before: str, call: str, codes: set[str]) -> None:
    """Also a branch that did not run: the name would hold another value there."""
    cls = zoo_class(source(before, call))
    plan = plan_of(cls)
    refused = [r for r in plan.refusals if r.rule == "qk_norm_rope_heads_first"]
    assert {r.code for r in refused} == codes, plan.refusals
    assert "qk_norm_rope_heads_first" not in {s.rule.name for s in plan.sites}


def test_a_line_that_does_more() -> None:
    """Two values are bound at once, so neither is all that the line is for."""
    before = "q, k = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x))"
    plan = plan_of(zoo_class(source(before)))
    refused = [r.code for r in plan.refusals if r.rule == "qk_norm_rope_heads_first"]
    assert refused == ["AP207"]


@pytest.mark.parametrize("spelling", ["F.relu", "torch.nn.functional.relu", "nn.functional.relu"])
def test_a_module_before_the_dot_is_no_operand(spelling: str) -> None:
    """The activation is not part of the product's line, so its operand is put there by its text."""
    cls = zoo_class(
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Linear(W, I), nn.Linear(W, I)\n\n"
        f"    def forward(self, x):\n        h = {spelling}(self.a(x))\n        return self.b(x) * (h * h)\n"
    )
    plan = plan_of(cls)
    assert [s.rule.name for s in plan.sites] == ["stacked_pair", "act_and_mul"]
    text = str(plan.new_source())
    assert "h = a_\n" in text and "NK.act_and_mul(h, b_, 'relu2')" in text
    assert proof_of(cls, plan).passed
