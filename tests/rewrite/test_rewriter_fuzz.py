"""The rewriter on sources that are written oddly at random: right and whole, or left alone; never anything else.

A gated MLP and an RMS norm are spelled with comments in every place, broken and joined lines, walruses, nested
blocks, names of other scripts and what else Python allows. What is rewritten must parse, keep every comment
outside the replaced expressions, and pass its proof.
"""

from __future__ import annotations

import ast
import textwrap
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import family, plan_of, proof_of, zoo_class

SETTINGS = settings(
    max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip

CLASS = """
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(W, I), nn.Linear(W, I), nn.Linear(I, W)
        self.weight = nn.Parameter(torch.ones(W))
        self.act = nn.SiLU()

    def forward(self, x{signature}):
{body}
"""
NORM = "self.weight * ({x}.float() * torch.rsqrt({x}.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to({x}.dtype)"
# Ways to give `NAME` the value of `VALUE`, as lines; {c} is a place for a comment.
ASSIGN = (
    "{name} = {value}{c}",
    "{name} = ({c}\n    {value}\n){c}",
    "{name} = \\\n    {value}",
    "unused = 1; {name} = {value}; unused = 2{c}",
    "{name}: torch.Tensor = {value}{c}",
    "if ({name} := {value}) is not None:\n    pass{c}",
    "{name}, = {value},",
    "({name}) = {value}",
    "if True:{c}\n    {name} = {value}\nelse:\n    {name} = x",
    "with torch.no_grad():{c}\n    {name} = {value}",
    "try:{c}\n    {name} = {value}\nfinally:\n    unused = 3",
    "for unused in range(1):\n    {name} = {value}{c}",
    "{name} = [{value}][0]{c}",
    "{name} = (lambda: {value})(){c}",
    "{name} = {value} if x is not None else x{c}",
)
NAMES = ("h", "größe", "变量", "ｘ２", "_", "self_gate", "NF", "weight", "gate_weight")


@st.composite
def forward(draw: Any) -> tuple[str, list[str]]:
    """The body of a forward, and the comments in it."""
    comments: list[str] = []

    def comment() -> str:
        if not draw(st.booleans()):
            return ""
        text = draw(
            st.sampled_from(("note", "größer als #", "type: ignore", "fmt: off", "émoji 🙂"))
        )
        comments.append(f"# {len(comments)} {text}")
        return f"  {comments[-1]}"

    def assign(name: str, value: str) -> str:
        template: str = draw(st.sampled_from(ASSIGN))
        parts = template.split("{c}")
        spelled = parts[0] + "".join(comment() + part for part in parts[1:])
        return spelled.replace("{name}", name).replace("{value}", value)

    norm, gate, up, out = draw(st.permutations(NAMES))[:4]
    lines = [assign(norm, NORM.format(x="x"))] if draw(st.booleans()) else [f"{norm} = x"]
    if draw(st.booleans()):
        lines += [assign(gate, f"self.act(self.gate({norm}))"), assign(up, f"self.up({norm})")]
        lines += [assign(out, f"self.down({gate} * {up})")]
    else:
        lines += [assign(out, f"self.down(self.act(self.gate({norm})) * self.up({norm}))")]
    lines.append(f"return {out}")
    return "\n".join(lines), comments


@SETTINGS
@given(
    forward(),
    st.sampled_from(("", ", *args, **kwargs", ", scale: float = 1.0, /", ", *, mask=None")),
)
def test_odd_spellings(body: tuple[str, list[str]], signature: str) -> None:
    text, comments = body
    source = CLASS.format(signature=signature, body=textwrap.indent(text, " " * 8))
    plan = plan_of(zoo_class(source), family("mlp", "norm"))
    new = plan.new_source()
    if new is None:
        assert not plan.sites
        assert plan.refusals, source  # it is all there: what is left alone says why
        return
    ast.parse(textwrap.dedent(new))
    outside = [c for c in comments if c not in _inside(text, comments)]
    assert [c for c in outside if c not in new] == [], new
    proof = proof_of(zoo_class(source), plan)
    assert proof.passed, f"{proof.figures()}\n{source}\n{new}"


def _inside(text: str, comments: list[str]) -> list[str]:
    """Comments that stand between the brackets of an expression, which may be replaced as a whole."""
    return [c for c in comments if f"({'  ' + c}" in text]
