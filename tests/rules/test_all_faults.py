"""All faults of a rule file are told at once, each once: what is wrong in one part hides nothing in another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.parse import PatternError, parse_pattern

Fault = tuple[int, int, str]
KINDS = "linear, parameter, number, float32, value"
MLP = """\
rule: mine
summary: a gated MLP
match: y = down(silu(gate(x)) * up(x))
where: {"gate, up, down": linear}
replace: y = NF.mlp(x, gate.weight, up.weight, down.weight, act_fn=NF.ActFnType.SiLU)
"""


def faults(folder: Path, text: str) -> list[Fault]:
    """Line, column and message of every fault, in the order they are told."""
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        load_rule(path)
    head, *lines = caught.value.what.splitlines()
    assert head == f"rule file has {'one fault' if len(lines) == 1 else f'{len(lines)} faults'}:"
    found = [re.fullmatch(rf"{re.escape(str(path))}:(\d+):(\d+): (.*)", x) for x in lines]
    return [(int(f[1]), int(f[2]), f[3]) for f in found if f is not None]


CASES: dict[str, tuple[str, list[Fault]]] = {
    "an unknown field is read as the one that was meant": (
        "rule: mine\nsumary: b\nmatch: y = rel(x) * lift(z)\nrequires:\n  - q.ndim == 3\n  - x.shap == z.shape\n"
        "replace: y = NF.mpl(x)\nexmples:\n  matches: 3\n",
        [
            (2, 1, "unknown field `sumary`; did you mean `summary`?"),
            (3, 12, "unknown operation `rel`; did you mean `relu`?"),
            (3, 21, "unknown operation `lift`; did you mean `split`?"),
            (4, 1, "unknown field `requires`; did you mean `require`?"),
            (5, 5, "`q.ndim == 3`: unknown name `q`"),
            (6, 5, "`x.shap == z.shape`: no `shap` on `x`; did you mean `shape`?"),
            (7, 14, "NF has no function `mpl`; did you mean `mlp`?"),
            (8, 1, "unknown field `exmples`; did you mean `examples`?"),
            (9, 12, "`matches` must be a list"),
        ],
    ),
    "every wrong operation, each once": (
        MLP.replace("down(silu(gate(x)) * up(x))", "dwn(acct(gate(x)) @ (sqare(x) + tanhh(x, x)))"),
        [
            (3, 12, "unknown operation `dwn`; did you mean `down`?"),
            (3, 16, "unknown operation `acct`; `autoport explain` lists them"),
            (3, 16, "operators are + - * / ** and | for another spelling"),
            (3, 33, "unknown operation `sqare`; did you mean `square`?"),
            (3, 44, "unknown operation `tanhh`; did you mean `tanh`?"),
        ],
    ),
    "every wrong argument": (
        MLP.replace("act_fn=NF.ActFnType.SiLU", "act_fnn=NF.ActFnType.SILU, up_bias=up.bais, zzz=3"),
        [
            (5, 61, "NF.mlp takes no argument `act_fnn`; did you mean `act_fn`?"),
            (5, 69, "NF.ActFnType has no `SILU`; did you mean `SiLU`?"),
            (5, 88, "NF.mlp takes no argument `up_bias`; did you mean `up_b`?"),
            (5, 96, "a weight has no `bais`; did you mean `bias`?"),
            (5, 105, "NF.mlp takes no argument `zzz`"),
        ],
    ),
    "arguments that are missing": (
        MLP.replace("NF.mlp(x, gate.weight, up.weight, down.weight,", "NF.mlp(x, hidden_states=x,"),
        [
            (5, 14, "NF.mlp needs `gate_w`, `up_w`, `down_w`"),
            (5, 24, "NF.mlp takes no argument `hidden_states`"),
        ],
    ),
    "names without a kind": (
        MLP.replace('{"gate, up, down": linear}', "{gate, up, down: linear}"),
        [
            (4, 9, f"`gate` has no kind; kinds: {KINDS}"),
            (4, 15, f"`up` has no kind; kinds: {KINDS}"),
        ],
    ),
    "a field without a value": (
        MLP.replace('where: {"gate, up, down": linear}', "where:"),
        [(4, 1, "`where` must be a mapping")],
    ),
    "a kind that is misspelt": (
        MLP.replace(": linear}", ": liner}\nrequire:\n  - gate.out_feature == 3"),
        [
            (4, 27, "`gate` has unknown kind `liner`; did you mean `linear`?"),
            (4, 27, "`up` has unknown kind `liner`; did you mean `linear`?"),
            (4, 27, "`down` has unknown kind `liner`; did you mean `linear`?"),
            (6, 5, "`gate.out_feature == 3`: no `out_feature` on `gate`; did you mean `out_features`?"),
        ],
    ),
    "a pattern that is not Python": (
        MLP.replace("up(x))", "up(x)").replace(": linear}", ": linear}\nrequire:\n  - gate.width == 3"),
        [
            (3, 16, "not an equation: '(' was never closed"),
            (6, 5, "`gate.width == 3`: no `width` on `gate`; there are bias, in_features, layout, "
                   "out_features, weight"),
        ],
    ),
    "a pattern that is no text": (
        MLP.replace("match: y = down(silu(gate(x)) * up(x))", "match: 5").replace("NF.mlp", "NF.mpl"),
        [
            (3, 8, "`match` must be text"),
            (5, 14, "NF has no function `mpl`; did you mean `mlp`?"),
        ],
    ),
    "equations that can never hold": (
        "rule: mine\nsummary: b\nmatch: |\n  y = relu(z) * w\n  z = exp(v)\n  v = exp(y)\n  u = exp(u)\n  z = tanh(w)\n"
        "  s = w\nreplace: y = NK.act_and_mul(w, w, kind='silu')\n",
        [
            (4, 3, "equations need each other, no value is before the others: y → z → v → y"),
            (7, 3, "equations need each other, no value is before the others: u → u"),
            (8, 3, "`z` has an equation already: another spelling stands behind `|`"),
            (9, 7, "`w` is no operation: `name = expression` computes something"),
        ],
    ),
    "conditions that are no text, and scopes": (
        MLP.replace(": linear}", ": linear}\nrequire:\n  - 5\n  -\n  - prefill: x.ndim == 3\n"
                    "  - 'prefill: x.ndim == 3'")
        + "neuron:\n  - 'prefil: x.ndim == 3'\n  - 'chip: x.ndim == 3'\n  - trn2: x.ndim == 3\n",
        [
            (6, 5, "a condition must be text"),
            (7, 4, "a condition must be text"),
            (8, 5, "a condition must be text in quotes, as a `: ` is in it"),
            (9, 6, "`prefill:` is for conditions of `neuron`; what `require` has counts always"),
            (12, 6, "`prefil` is no phase or target; did you mean `prefill`?"),
            (13, 6, "`chip` is no phase or target; there are prefill, decode, trn2, trn3"),
            (14, 5, "a condition must be text in quotes, as a `: ` is in it"),
        ],
    ),
    "a role that no rule could ask for": (
        MLP.replace("rule: mine", "rule: mine\nrole: 7 up"),
        [(2, 7, "`7 up` is no role: letters, digits and _")],
    ),
    "text over several lines": (
        "rule: mine\nsummary: b\nmatch: >\n  y = relu(x)\n  * lif(x)\n  + tahn(x)\n"
        "require:\n  - x.ndim == 3 and\n    q.ndim == 3\n  - 'x.dtype == ''a'' and r == 1'\n"
        'replace: "y = NK.act_and_mul(x, \\\n  \\x78, kynd=3)"\n',
        [
            (5, 5, "unknown operation `lif`; `autoport explain` lists them"),
            (6, 5, "unknown operation `tahn`; did you mean `tanh`?"),
            (9, 5, "`x.ndim == 3 and q.ndim == 3`: unknown name `q`"),
            (10, 27, "`x.dtype == 'a' and r == 1`: unknown name `r`"),
            (12, 9, "NK.act_and_mul takes no argument `kynd`; did you mean `kind`?"),
        ],
    ),
    "a phase that is misspelt": (
        MLP.replace("replace: y = NF.mlp(x,", "replace:\n  decode: y = NF.mlp(x, *x)\n  prefil: y = NF.mpl(x,"),
        [
            (6, 25, "Starred is not allowed here"),
            (7, 3, "unknown field `prefil`; did you mean `prefill`?"),
            (7, 15, "NF has no function `mpl`; did you mean `mlp`?"),
        ],
    ),
    "weights of a wrong text": (
        MLP + "weights:\n  both: stck(gate, up)\nshard: {both: colum, bath: row}\n",
        [
            (7, 9, "`stck(gate, up)` is not `name: stack(a, b)` or `a, b: split(name)`"),
            (8, 15, "`both` is sharded as `colum`; did you mean `column`?"),
            (8, 22, "`bath` is no weight of this rule; did you mean `both`?"),
        ],
    ),
    "a field of an example that is misspelt": (
        MLP + "examples:\n  matches:\n    - input: [0]\n      sorce: a\n  rejects:\n    - becase: b\n      source: a\n",
        [
            (8, 14, "`input` is a list of sizes such as [2, 5, 16], or a list of such lists"),
            (9, 7, "unknown field `sorce` of an example; did you mean `source`?"),
            (11, 7, "unknown field `becase` of an example; did you mean `because`?"),
            (12, 15, "the source of an example defines a class"),
        ],
    ),
    "every fault of every condition": (
        MLP.replace(": linear}", ": linear}\nrequire:\n  - len(x.shap) == 3 and q.ndim == 2 and x.__class__ == 1\n"
                    "  - gate.in_feature == [1] or x.rank == 2") + "neuron:\n  - 'prefill: x.ndm == abs(z) + None'\n",
        [
            (6, 5, "`len(x.shap) == 3 and q.ndim == 2 and x.__class__ == 1`: Call is not allowed here"),
            (6, 9, "`len(x.shap) == 3 and q.ndim == 2 and x.__class__ == 1`: no `shap` on `x`; did you mean `shape`?"),
            (6, 26, "`len(x.shap) == 3 and q.ndim == 2 and x.__class__ == 1`: unknown name `q`"),
            (6, 42, "`len(x.shap) == 3 and q.ndim == 2 and x.__class__ == 1`: attribute __class__ is not allowed"),
            (7, 5, "`gate.in_feature == [1] or x.rank == 2`: no `in_feature` on `gate`; did you mean `in_features`?"),
            (7, 24, "`gate.in_feature == [1] or x.rank == 2`: List is not allowed here"),
            (7, 31, "`gate.in_feature == [1] or x.rank == 2`: no `rank` on `x`; there are dtype, linears, ndim, "
                    "rows, shape"),
            (10, 15, "`prefill: x.ndm == abs(z) + None`: no `ndm` on `x`; did you mean `ndim`?"),
            (10, 24, "`prefill: x.ndm == abs(z) + None`: Call is not allowed here"),
            (10, 28, "`prefill: x.ndm == abs(z) + None`: unknown name `z`"),
            (10, 33, "`prefill: x.ndm == abs(z) + None`: `None` is no number: arithmetic takes numbers"),
        ],
    ),
    "arithmetic with what is no number": (
        MLP.replace(": linear}", ": linear}\nrequire:\n  - x.shape * 4000000000000 == 3\n  - -x.dtype == 1 + 'a'\n"
                    "  - x.ndim < 99999999999999999999"),
        [
            (6, 5, "`x.shape * 4000000000000 == 3`: `x.shape` is no number: arithmetic takes numbers"),
            (7, 6, "`-x.dtype == 1 + 'a'`: `x.dtype` is no number: arithmetic takes numbers"),
            (7, 21, "`-x.dtype == 1 + 'a'`: `'a'` is no number: arithmetic takes numbers"),
            (8, 14, "`x.ndim < 99999999999999999999`: a number is at most 9223372036854775807"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_all_faults(tmp_path: Path, name: str) -> None:
    text, expected = CASES[name]
    assert faults(tmp_path, text) == expected


def test_the_rule_they_are_made_of_is_good(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MLP)
    assert load_rule(tmp_path / "mine.yaml").call == "NF.mlp"


def test_a_role_may_have_capitals_as_rules_have(tmp_path: Path) -> None:
    """A rule called `MyNorm` gives the role `MyNorm`, and another may ask for it."""
    text = "rule: MyNorm\nsummary: a\nmatch: y = exp(n(x))\nwhere:\n  n: OtherNorm\nrefuse: no function\n"
    (tmp_path / "MyNorm.yaml").write_text(text)
    rule = load_rule(tmp_path / "MyNorm.yaml")
    assert rule.role == "MyNorm" and rule.roles == {"n": "OtherNorm"}


def test_a_fault_at_every_level_takes_no_longer() -> None:
    """Each part of a pattern is read once, however many faults stand above it."""
    depth = 60
    with pytest.raises(PatternError) as caught:
        parse_pattern("y = " + "(x @ " * depth + "lift(x)" + ")" * depth, set(), set())
    assert len(caught.value.all) == depth + 1
