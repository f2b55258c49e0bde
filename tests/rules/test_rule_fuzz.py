"""Whatever stands in a rule file, the answer is a rule or an error for the user: no crash, no hang, no code run.

Mutants are made of the built-in rules: tokens replaced, lines moved, taken out or joined with others'. What loads
is planned against real modules, as its user would do next.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_autoport.errors import RuleError
from neuron_autoport.rewrite.plan import plan_class
from neuron_autoport.rules.library import folder_rules, load_rules
from neuron_autoport.rules.plain import MOST_BYTES, MOST_DEPTH, load_plain_rule
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.module_trace import ModuleTrace
from tests.helpers import trace_of, zoo_class

LIBRARY = load_rules()
TEXTS = [rule.text for rule in LIBRARY]
GOOD = next(r.text for r in LIBRARY if r.name == "gated_mlp").partition("examples:")[0]
WORDS = [
    "x", "y", "silu", "mean", "split", "cut", "after", "like", "fp32", "NF.mlp", "NK.rms_norm",
    "None", "True", "-1", "1e400", "{}", "[]", "|>", "~", "null", "2024-01-01", "0x1f", ".inf",
    ".nan", "'", '"', "#", "?", "x?", "((((", "lambda", "f'{x}'", "x[0]", "&a", "*a",
    "!!python/object:os.system", "!!binary", "<<:", "---", "...", "%YAML", "rule", "where",
    "replace", "refuse", "weights", "shard", "neuron", "examples", "prefill:", "decode:", "heads",
    "rms_norm", "linear", "number", "parameter", "**", "//", "@", ":=", "é",
]  # fmt: skip
HANG = 60  # seconds; a loop, not a slow machine


@contextmanager
def watched() -> Iterator[None]:
    """Ends what does not end by itself, and forbids running anything."""

    def hung(*_: object) -> None:
        raise TimeoutError("this does not end")

    def ran(*what: object, **_: object) -> None:
        raise AssertionError(f"code was run: {what}")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HANG)
    try:
        with (
            mock.patch("builtins.exec", ran),
            mock.patch("builtins.eval", ran),
            mock.patch("os.system", ran),
            mock.patch("subprocess.Popen", ran),
        ):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def mutate(text: str, source: random.Random) -> str:
    """One change of a rule file's text."""
    lines = text.split("\n")
    line = source.randrange(len(lines))
    kind = source.randrange(7)
    if kind == 0:
        tokens = [m.span() for m in re.finditer(r"[\w.]+|[^\w\s]", text)] or [(0, 0)]
        start, end = source.choice(tokens)
        return text[:start] + source.choice(WORDS) + text[end:]
    if kind == 1:
        start = source.randrange(len(text) + 1)
        return text[:start] + source.choice(WORDS) + text[start:]
    if kind == 2:
        start = source.randrange(len(text) + 1)
        return text[:start] + text[start + source.randint(1, 20) :]
    if kind == 3:
        lines.pop(line)
    elif kind == 4:
        lines.insert(line, source.choice(lines))
    elif kind == 5:
        lines[line] = " " * source.randint(0, 8) + lines[line].lstrip()
    else:
        other = source.choice(TEXTS).split("\n")
        start = source.randrange(len(other))
        lines[line:line] = other[start : start + source.randint(1, 4)]
    return "\n".join(lines)


def load(text: str) -> Rule | None:
    """The rule, or None if the user is told why there is none."""
    try:
        return load_plain_rule(Path("mutant.yaml"), text.encode("utf-8", "replace"))
    except RuleError as error:
        assert "mutant.yaml" in error.text() and error.next_step
        return None


@pytest.fixture(scope="module")
def traces() -> list[ModuleTrace]:
    head = "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    bodies = (
        "        self.gate, self.up, self.down = nn.Linear(W, I), nn.Linear(W, I), nn.Linear(I, W)\n\n"
        "    def forward(self, x):\n        return x + self.down(F.silu(self.gate(x)) * self.up(x))\n",
        "        self.weight = nn.Parameter(torch.ones(W))\n\n    def forward(self, x):\n"
        "        h = x.float()\n        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
        "        return self.weight * h.to(x.dtype)\n",
    )
    return [trace_of(zoo_class(head + body)) for body in bodies]


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_mutants(traces: list[ModuleTrace], source: random.Random, times: int) -> None:
    text = source.choice(TEXTS)
    for _ in range(times):
        text = mutate(text, source) or "x"
    with watched():
        rule = load(text)
        if rule is not None:
            for trace in traces:
                plan_class(trace, (rule,), roles=Roles((rule, *LIBRARY)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    with watched():
        load(text)


def laughs(indent: str, item: str) -> str:
    """A list that names itself nine times over, nine deep: a thousand bytes that mean gigabytes."""
    lines = [f"{indent}{item.format('a')}&a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{indent}{item.format(name)}&{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines) + "\n"


BOMBS = {
    "aliases at the top": (laughs("", "{}: ") + GOOD, "anchors and aliases"),
    "aliases in a list": (f"{GOOD}neuron:\n{laughs('  ', '- ')}", "anchors and aliases"),
    "a list in itself": (f"{GOOD}neuron: &a\n  - *a\n", "anchors and aliases"),
    "a tag that makes an object": (f"{GOOD}role: !!python/object/apply:os.system ['true']\n", "the tag"),
    "a tag at the top": ("!!python/object/apply:os.system ['true']\n", "the tag"),
    "deep lists": (f"rule: {'[' * 3000}{']' * 3000}\n", f"nested more than {MOST_DEPTH} levels deep"),
    "deep maps": ("".join(f"{' ' * i}a{i}:\n" for i in range(300)), f"nested more than {MOST_DEPTH} levels"),
    "deep calls": (GOOD.replace("act(gate(x))", "act(" + "silu(" * 120 + "gate(x)" + ")" * 121), None),
    "deeper calls": (GOOD.replace("act(gate(x))", "silu(" * 900 + "gate(x)" + ")" * 900), "nested parentheses"),
    "a long sum": (GOOD.replace("act(gate(x))", " + ".join(["x"] * 9000)), "nested too deeply"),
    "a condition of nots": (f"{GOOD}  - {'not ' * 9000}x.ndim == 3\n", "nested too deeply"),
    "a number of 5000 digits": (f"{GOOD}  - {'9' * 5000} == 3\n", "set_int_max_str_digits"),
    "a large file": (GOOD + "#" * MOST_BYTES, "is the most"),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_files_made_to_blow_up(case: str) -> None:
    text, message = BOMBS[case]
    with watched():
        try:
            rule = load_plain_rule(Path("bomb.yaml"), text.encode())
        except RuleError as error:
            assert message is not None and message in error.what, error.what
            assert "bomb.yaml" in error.text() and len(error.text()) < 2000
        else:
            assert message is None and rule.match


def test_stars_and_signs_of_python_are_no_anchors(tmp_path: Path) -> None:
    """`a *b`, `!=` and `&` inside a rule's own text are no YAML."""
    text = GOOD.replace("act(gate(x)) * up(x)", "act(gate(x)) *up(x)")
    text += "  - x.ndim !=2\nexamples:\n  matches:\n    - |\n      class M(nn.Module):  # &a *b !c\n        pass\n"
    path = tmp_path / "stars.yaml"
    path.write_text(text.replace("rule: gated_mlp", "rule: stars"), encoding="utf-8")
    (rule,) = folder_rules(tmp_path)
    assert rule.name == "stars" and len(rule.examples) == 1
