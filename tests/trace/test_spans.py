"""A span cut out of the source file is exactly the expression that made the node."""

from __future__ import annotations

import pytest

from neuron_autoport.trace.spans import Span
from tests.helpers import trace_of, zoo_class

SOURCE = """
def helper(v, scale):
    return twice(v) * scale


def twice(v):
    return v + v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.größe = nn.Linear(W, I)
        self.weight = nn.Parameter(torch.ones(W))

    def forward(self, x):
        é = "ünïcödé, 漢字"; y = x.cos()
        y = {"ключ": y}["ключ"].sin() if é else y
        z = self.größe(y)
        w = (
            z.exp()  # a comment
            + torch.sum(
                z, dim=-1,
                keepdim=True,
            )
        )
        w += helper(w, 3)
        a, b = w[..., :4], w[..., 4:].tanh()
        if a.shape[-1] == 4: a = a.neg()
        out = [t.abs() for t in (a,)]
        return out[0].sqrt(), b, self.weight * 2
"""
# canonical name of the torch call -> text at its spans, outermost first
EXPECTED: dict[str, list[tuple[str, ...]]] = {
    "cos": [("x.cos()",)],
    "sin": [('{"ключ": y}["ключ"].sin()',)],
    "größe": [("self.größe(y)",)],
    "exp": [("z.exp()",)],
    "sum": [
        ("torch.sum(\n                z, dim=-1,\n                keepdim=True,\n            )",)
    ],
    "add": [
        (
            "z.exp()  # a comment\n            + torch.sum(\n                z, dim=-1,\n"
            "                keepdim=True,\n            )",
        ),
        ("helper(w, 3)", "twice(v)", "v + v"),
        ("w += helper(w, 3)",),
    ],
    "mul": [("helper(w, 3)", "twice(v) * scale"), ("self.weight * 2",)],
    "getitem": [("w[..., :4]",), ("w[..., 4:]",)],
    "tanh": [("w[..., 4:].tanh()",)],
    "neg": [("a.neg()",)],
    "abs": [("[t.abs() for t in (a,)]", "t.abs()")],
    "sqrt": [("out[0].sqrt()",)],
}


def cut(span: Span) -> str:
    """The text of a span, by bytes."""
    with open(span.file, "rb") as file:
        lines = file.read().split(b"\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    return b"\n".join(lines).decode()


@pytest.fixture(scope="module")
def found() -> dict[str, list[tuple[str, ...]]]:
    texts: dict[str, list[tuple[str, ...]]] = {}
    for node in trace_of(zoo_class(SOURCE)).graph.nodes:
        if node.op in ("call_function", "call_module"):
            name = str(getattr(node.target, "__name__", node.target)).strip("_")
            texts.setdefault(name, []).append(tuple(cut(s) for s in node.meta["spans"]))
    return texts


@pytest.mark.parametrize("name", EXPECTED)
def test_text_of_spans(name: str, found: dict[str, list[tuple[str, ...]]]) -> None:
    assert found[name] == EXPECTED[name]


def test_no_other_nodes(found: dict[str, list[tuple[str, ...]]]) -> None:
    assert set(found) - {"after_write"} == set(EXPECTED)


def test_a_span_prints_as_editors_count() -> None:
    span = Span("/somewhere/model.py", 3, 4, 3, 9, "f")
    assert str(span) == "/somewhere/model.py:3:5"
    assert span.short() == "model.py:3:5"
