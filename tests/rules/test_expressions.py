"""The expression language of conditions: what it allows, what it refuses and where, what it computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_autoport.rules.expressions import ExpressionError, evaluate, parse_expression


@dataclass
class Thing:
    shape: tuple[int, ...] = (2, 7, 64)
    ndim: int = 3
    dtype: str = "torch.bfloat16"
    bias: str | None = None
    inner: Any = field(default=None)
    sizes: tuple[int, ...] = (3,)


NAMES = {"x": Thing(inner=Thing(shape=(5,))), "tp": 4, "n": 7, "eps": 1e-6, "flag": True}

ALLOWED = [
    "x.shape[-1] % 128 == 0",
    "x.shape[-1] // tp <= 4096",
    "(x.shape[0] + x.shape[1]) * 2 - 1 > -3",
    "x.ndim == 3 and not x.bias",
    "x.bias is None or n > 3",
    "x.bias is not None",
    "1 < n < 10",
    "1 < n < 3",
    "1 < tp < n != 8",
    "x.dtype == 'torch.bfloat16'",
    "n / 2 == 3.5",
    "-n + -(-n) == 0",
    "not flag or flag and n",
    "0 or n",
    "n and 0",
    "eps < 1e-5",
    "x.inner.shape[0] == 5",
    "n % 4 >= 3",
    "True",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_values_are_pythons(text: str) -> None:
    expected = eval(text, {"__builtins__": {}}, dict(NAMES))
    assert evaluate(parse_expression(text), NAMES) == expected


REFUSED = [
    ("len(x)", "Call", 1),
    ("n > 3 and len(x)", "Call", 11),
    ("x.shape[0:2] == 3", "Slice", 9),
    ("x.shape[0, 1]", "Tuple", 9),
    ("x.__class__", "attribute __class__", 1),
    ("n == x._hidden", "attribute _hidden", 6),
    ("n + x.shape.__len__", "attribute __len__", 5),
    ("[i for i in x]", "ListComp", 1),
    ("{i for i in x}", "SetComp", 1),
    ("(i for i in x)", "GeneratorExp", 1),
    ("lambda: 1", "Lambda", 1),
    ("n if flag else 2", "IfExp", 1),
    ("(y := 3)", "NamedExpr", 2),
    ("f'{n}'", "JoinedStr", 1),
    ("[1, 2]", "List", 1),
    ("{1: 2}", "Dict", 1),
    ("{1}", "Set", 1),
    ("await n", "Await", 1),
    ("n == 1 or 2 ** n", "Pow", 11),
    ("1 + (n << 2)", "LShift", 6),
    ("n > 3 and n in x", "In", 11),
    ("~n", "Invert", 1),
    ("n @ n", "MatMult", 1),
    ("*n", "not an expression", None),
    ("n = 3", "not an expression", None),
    ("n >", "not an expression", None),
    ("", "not an expression", None),
    ("import os", "not an expression", None),
    ("b'a' == n", "not allowed", 1),
    ("... == n", "not allowed", 1),
    ("3j", "not allowed", 1),
    ("'a' * n", "`'a'` is no number: arithmetic takes numbers", 1),
    ("n + '%s' % n", "`'%s'` is no number", 5),
    ("n == -None", "`None` is no number", 7),
    ("n == x.shape * 4000000000000", "`x.shape` is no number", 6),
    ("n == 3 % x.inner.dtype", "`x.inner.dtype` is no number", 10),
    ("n < 9223372036854775808", "a number is at most 9223372036854775807", 5),
    ("(" * 250 + "n" + ")" * 250, "not an expression: too many nested parentheses", None),
    ("+".join("n" * 3000), "nested too deeply", 1),
    ("not " * 5000 + "n", "nested too deeply", 1),
    ("'é' == n and len(x)", "Call", 14),
]


@pytest.mark.parametrize(("text", "message", "column"), REFUSED, ids=[r[0][:40] for r in REFUSED])
def test_refused_with_the_column(text: str, message: str, column: int | None) -> None:
    with pytest.raises(ExpressionError, match=message) as caught:
        parse_expression(text)
    assert column is None or caught.value.column == column


FAILING = [
    ("missing > 3", "unknown name `missing`"),
    ("x.width", "no `width` on `x`"),
    ("x.bias < 3", "not supported"),
    ("n / (tp - 4)", "division by zero"),
    ("n % 0", "modulo"),
    ("x.shape[7]", "out of range"),
    ("n[0]", "not subscriptable"),
    ("x.inner * 1000000000000", "`x.inner` is no number, arithmetic takes numbers"),
    ("x.inner.sizes * 1000000000000 == 3", "`x.inner.sizes` is no number"),
    ("-x.bias", "`x.bias` is no number"),
    ("(n or x.inner) + (x.inner or n)", "`x.inner or n` is no number"),
]


@pytest.mark.parametrize(("text", "message"), FAILING)
def test_what_cannot_be_worked_out_says_why(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        evaluate(parse_expression(text), NAMES)


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["n", "tp", "eps", "x.ndim", "x.shape[-1]", "3", "2.5", "0", "True"])
    operators = ["+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", ">", "and", "or"]

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pair = st.tuples(inner, st.sampled_from(operators), inner)
        return st.one_of(
            pair.map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
            inner.map(lambda t: f"(-{t})"),
            inner.map(lambda t: f"(not {t})"),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(expressions())
def test_any_expression_gives_what_python_gives(text: str) -> None:
    tree = parse_expression(text)
    try:
        expected = eval(text, {"__builtins__": {}}, dict(NAMES))
    except ArithmeticError:
        with pytest.raises(ExpressionError):
            evaluate(tree, NAMES)
        return
    assert evaluate(tree, NAMES) == expected
