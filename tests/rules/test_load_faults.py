"""A rule file that is wrong is told so: file, line, column, what is wrong, the nearest right word.

Each case edits one good rule file. The place expected is where a mark `§` stands in the edited text, so no
line or column is counted by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.load import load_rule

GOOD = """\
# A comment first.
rule: packed
summary: a packed gate and up projection
role: gated_mlp
match: |
  g, u = split(both(x))
  y = down(act(g) * u)
given: |
  m = mean(x, -1, keepdim=True)
where:
  both, down: linear
  act:
    silu: NF.ActFnType.SiLU
    gelu: NF.ActFnType.GELU
require:
  - g.shape[-1] == u.shape[-1]
  - "x.ndim == 3"
weights:
  gate, up: split(both)
shard: {gate: column, up: column, down: row}
replace: |
  y = NF.mlp(x.flatten(0, -2), gate.weight, up.weight,
             down.weight, act_fn=act).unflatten(0, x.shape[:-1])
neuron:
  - u.shape[-1] // tp <= 4096
examples:
  matches:
    - input: [2, 5, 16]
      source: |
        class MLP(nn.Module): ...
"""

# (text of the good file, what stands there instead with § at the fault, the message)
CASES: list[tuple[str, str, str]] = [
    ("rule: packed", "§ruel: packed", "unknown field `ruel`; did you mean `rule`?"),
    ("role: gated_mlp", "§colour: red", "unknown field `colour`; fields are rule, summary, role"),
    ("rule: packed", "rule: §two words", "`two words` is no rule name"),
    ("summary: a packed gate and up projection", "summary: §[1, 2]", "`summary` must be text"),
    ("role: gated_mlp", "role: §{a: b}", "`role` must be text"),
    # match
    ("y = down(act(g) * u)", "y = down(act(g) * §lift(u))", "unknown operation `lift`"),
    ("y = down(act(g) * u)", "y = down(act(g) * §squre(u))", "did you mean `square`?"),
    ("y = down(act(g) * u)", "y = §dwon(act(g) * u)", "did you mean `down`?"),
    ("y = down(act(g) * u)", "y = down(act(g) * u§", "not an equation: '(' was never closed"),
    ("y = down(act(g) * u)", "§down(act(g) * u)", "expected an equation, `name = expression`"),
    ("y = down(act(g) * u)", "§y = z = down(act(g) * u)", "expected an equation"),
    ("y = down(act(g) * u)", "§y.x = down(act(g) * u)", "the left side takes plain names"),
    ("y = down(act(g) * u)", "§y, z = down(act(g) * u)", "need `split(...)`"),
    ("y = down(act(g) * u)", "y = down(§act(g) @ u)", "operators are + - * / **"),
    ("y = down(act(g) * u)", "y = down(act(g) * §u.T)", "expected a name, a number"),
    ("y = down(act(g) * u)", "y = down(act(g) * §'u')", "expected a name, a number"),
    ("y = down(act(g) * u)", "y = down(act(g) * §True)", "expected a name, a number"),
    ("y = down(act(g) * u)", "y = down(§act(g, u))", "`act` takes 1 operand, found 2"),
    ("y = down(act(g) * u)", "y = down(§act(x=g) * u)", "takes its operands by position"),
    ("y = down(act(g) * u)", "y = §down()", "`down` takes at least one operand"),
    ("y = down(act(g) * u)", "y = down(§exp() * u)", "`exp` takes 1 operand, found 0"),
    ("y = down(act(g) * u)", "y = down(§os.exp(u))", "call an operation by name, or as F.name"),
    ("y = down(act(g) * u)", "y = down(§like(u, 3))", "`like` is not used like this"),
    ("y = down(act(g) * u)", "y = down(§after(act(u)))", "`after` is not used like this"),
    ("y = down(act(g) * u)", "y = down(§split(u))", "`split` is not used like this"),
    ("g, u = split(both(x))", "g, u = §split()", "`split` takes 1 operand, found 0"),
    ("m = mean(x, -1, keepdim=True)", "m = mean(x, §1)", "`dim` counts from the end"),
    ("m = mean(x, -1, keepdim=True)", "m = §mean(x)", "`dim` counts from the end"),
    ("m = mean(x, -1, keepdim=True)", "m = mean(x, §n)", "`dim` must be a number"),
    ("m = mean(x, -1, keepdim=True)", "m = §mean(x, -1, keep=True)", "takes (value, dim, keepdim"),
    ("m = mean(x, -1, keepdim=True)", "m = §sum()", "takes (value, dim, keepdim"),
    ("y = down(act(g) * u)", "y = down(act(größe) * §lift(u))", "unknown operation `lift`"),
    # where
    ("both, down: linear", "both, down: §liner", "unknown kind `liner`; did you mean `linear`?"),
    ("both, down: linear", "both, down: §[linear]", "has unknown kind"),
    ("both, down: linear", "§both, down, off: linear", "`off` is declared but the pattern never"),
    ("    silu: NF.ActFnType.SiLU", "    §sillu: NF.ActFnType.SiLU", "did you mean `silu`?"),
    ("silu: NF.ActFnType.SiLU", "silu: §NF.ActFnType.Silu", "no `Silu`; did you mean `SiLU`?"),
    ("silu: NF.ActFnType.SiLU", "silu: §NF.ActFnTyp.SiLU", "did you mean `ActFnType`?"),
    ("silu: NF.ActFnType.SiLU", "silu: §exec('1')", "call a function of NF or NK"),
    # conditions
    ("- g.shape[-1] == u.shape[-1]", "- g.shape[-1] == §w.shape[-1]", "unknown name `w`"),
    ("- g.shape[-1] == u.shape[-1]", "- §g.shap[-1] == 3", "no `shap` on `g`; did you mean `shape`?"),
    ("- g.shape[-1] == u.shape[-1]", "- 3 == §both.width", "no `width` on `both`; there are bias, in_"),
    ("- g.shape[-1] == u.shape[-1]", "- 3 > §len(x)", "Call is not allowed here"),
    ("- g.shape[-1] == u.shape[-1]", "- g.shape[-1] ==§", "not an expression"),
    ('- "x.ndim == 3"', '- "x.ndim == §y.ndmi"', "did you mean `ndim`?"),
    ('- "x.ndim == 3"', '- "x.ndim == §x.__class__"', "attribute __class__ is not allowed"),
    ("- u.shape[-1] // tp <= 4096", "- u.shape[-1] // §tpp <= 4096", "did you mean `tp`?"),
    ("- u.shape[-1] // tp <= 4096", "- §(u.shape[-1] // tp) ** 2", "Pow is not allowed here"),
    # weights and sharding
    ("gate, up: split(both)", "gate, up: §spilt(both)", "is not `name: stack(a, b)`"),
    ("gate, up: split(both)", "gate, up: §stack(both)", "is not `name: stack(a, b)`"),
    ("gate, up: split(both)", "gate, up: §split(both, down)", "is not `name: stack(a, b)`"),
    ("gate, up: split(both)", "gate, up: §split(x)", "`x` is not a captured linear module"),
    ("gate, up: split(both)", "gate, up: §split(boht)", "did you mean `both`?"),
    ("up: column, down: row}", "up: §colum, down: row}", "did you mean `column`?"),
    ("{gate: column,", "{§gaet: column,", "`gaet` is no weight of this rule; did you mean `gate`?"),
    # replace
    ("y = NF.mlp(x.flatten(0, -2),", "y = §NF.mpl(x.flatten(0, -2),", "no function `mpl`; did you mean"),
    ("y = NF.mlp(x.flatten(0, -2),", "y = §NF.mlp(", "NF.mlp needs `down_w`"),
    ("down.weight, act_fn=act)", "down.weight, §act_fun=act)", "NF.mlp takes no argument `act_fun`; did you mean"),
    ("down.weight, act_fn=act)", "down.weight, §gate_w=act)", "NF.mlp gets `gate_w` by position already"),
    ("y = NF.mlp(x.flatten(0, -2),", "§z = NF.mlp(x.flatten(0, -2),", "`z` is given here but no"),
    ("down.weight, act_fn=act)", "§dwon.weight, act_fn=act)", "`dwon` is bound by nothing; did you"),
    ("down.weight, act_fn=act)", "§down.wieght, act_fn=act)", "did you mean `weight`?"),
    ("down.weight, act_fn=act)", "§down, act_fn=act)", "`down` is a module: say `down.weight`"),
    ("down.weight, act_fn=act)", "down.weight, act_fn=§NF.ActFnType.Relu)", "ActFnType has no `Relu`"),
    ("down.weight, act_fn=act)", "down.weight, act_fn=§NF)", "`NF` stands alone"),
]  # fmt: skip
# Each of these would run code of its own in the generated file.
EVIL = [
    "§__import__('os').system('true')",
    "§NF.__builtins__['exec']('1')",
    "§NF.weights.torch.os.system('true')",
    "§x.__class__",
    "§NF.dispatch.decide()",
    "§x.numpy().tofile('f')",
    "§x.apply_(print)",
    "[§i for i in x]",
    "§(lambda: x)()",
    "§f'{x}'",
    "§x if x else x",
    "§getattr(x, 'data')",
]


def write(folder: Path, text: str) -> Path:
    path = folder / "packed.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def place_of_mark(text: str) -> tuple[str, str]:
    """The text without `§`, and `line:column` of where it stood."""
    before, _, after = text.partition("§")
    line = before.count("\n") + 1
    return before + after, f"{line}:{len(before) - before.rfind(chr(10))}"


def faults(path: Path) -> str:
    with pytest.raises(RuleError) as caught:
        load_rule(path)
    return caught.value.text()


def test_the_good_file_is_good(tmp_path: Path) -> None:
    rule = load_rule(write(tmp_path, GOOD))
    assert (rule.name, rule.role, rule.call, rule.outputs) == (
        "packed",
        "gated_mlp",
        "NF.mlp",
        ("y",),
    )


@pytest.mark.parametrize(("good", "bad", "message"), CASES, ids=[c[1] for c in CASES])
def test_fault(tmp_path: Path, good: str, bad: str, message: str) -> None:
    assert GOOD.count(good) == 1
    text, place = place_of_mark(GOOD.replace(good, bad))
    path = write(tmp_path, text)
    said = faults(path)
    first = [line for line in said.splitlines() if message in line]
    assert first, said
    if "never closed" not in message and "not an expression" not in message:
        assert first[0].startswith(f"{path}:{place}: "), f"{place} expected:\n{said}"
    assert "autoport rules show" in said


@pytest.mark.parametrize("code", EVIL)
def test_a_rule_is_data(tmp_path: Path, code: str) -> None:
    code = code.replace("§", "")
    for text in (
        GOOD.replace("x.flatten(0, -2), gate.weight", f"{code}, gate.weight"),
        GOOD.replace("silu: NF.ActFnType.SiLU", f'silu: "{code}"'),
        GOOD.replace("- u.shape[-1] // tp <= 4096", f'- "{code}"'),
    ):
        assert text != GOOD
        assert "packed.yaml:" in faults(write(tmp_path, text))


def test_several_faults_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("both, down: linear", "both, down: liner")
    text = text.replace("- u.shape[-1] // tp", "- len(u)").replace("down: row", "down: rwo")
    said = faults(write(tmp_path, text)).splitlines()
    places = [line.split(":")[1] for line in said if "packed.yaml:" in line]
    assert said[0].startswith("rule file has ") and {"11", "20", "25"} <= set(places)


def test_a_wrong_pattern_blames_nothing_else(tmp_path: Path) -> None:
    said = faults(write(tmp_path, GOOD.replace("y = down(act(g) * u)", "y = down(lift(g) * u)")))
    assert said.startswith("rule file has one fault:\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a rule file is a mapping"),
        ("- a\n- b\n", "a rule file is a mapping"),
        ("just text\n", "a rule file is a mapping"),
        ("rule: a\n", "field `match` is missing"),
        ("rule: a\nsummary: b\nmatch: y = x\nreplace: y = NF.mlp(x)\nrule: b\n", "not YAML"),
        ("rule: [a\n", "not YAML"),
        ("rule: a\n\tb: c\n", "not YAML"),
        ("rule: \x00\n", "not YAML"),
        (GOOD.replace("match: |\n  g, u = split(both(x))\n  y = down(act(g) * u)", "match: 5"),
         "`match` must be text"),
        (GOOD.replace("match: |\n  g, u = split(both(x))\n  y = down(act(g) * u)", "match: ''"),
         "expected an equation"),
        (GOOD.replace("shard: {gate: column, up: column, down: row}", "shard: column"),
         "`shard` must be a mapping"),
        (GOOD.replace("neuron:\n  - u.shape[-1] // tp <= 4096", "neuron: u.shape[-1] > 3"),
         "`neuron` must be a list"),
        (GOOD.replace("    - input: [2, 5, 16]\n", "    - input: wide\n"), "`input` is a list of sizes"),
        (GOOD.replace("      source: |\n        class MLP(nn.Module): ...\n", ""), "has `source`"),
    ],
)  # fmt: skip
def test_no_rule_file_makes_a_traceback(tmp_path: Path, text: str, message: str) -> None:
    said = faults(write(tmp_path, text))
    assert message in said and "packed.yaml" in said


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "packed.yaml"
    path.write_bytes(GOOD.encode() + b"# \xff\n")
    assert "not UTF-8" in faults(path) and f"packed.yaml:{GOOD.count(chr(10)) + 1}" in faults(path)


@pytest.mark.parametrize("cut", range(0, len(GOOD), 7))
def test_any_beginning_of_a_good_file(tmp_path: Path, cut: int) -> None:
    """Whatever is cut off, the answer is a rule or an error for the user."""
    try:
        load_rule(write(tmp_path, GOOD[:cut]))
    except RuleError as error:
        assert "packed.yaml" in error.text()
