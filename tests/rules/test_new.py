"""`autoport rules new`: the rule it writes loads, matches its own module, and says what the module computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuron_autoport.models.own_module import parse_init
from neuron_autoport.rules.examples import Kind, run_rule
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.pattern import UNARY
from neuron_autoport.rules.rule import Rule
from neuron_autoport.rules.spelling import SPELLED
from tests.cli.conftest import Run
from tests.rules.new_modules import MINE


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    return str(path)


def new(run: Run, folder: Path, *arguments: str, name: str = "mine") -> Rule:
    """The rule that the command wrote; loading it and its example hold."""
    ran = run("rules", "new", name, *arguments, "-o", str(folder / "rules"))
    assert (ran.code, ran.err) == (0, ""), ran.err
    path = folder / "rules" / f"{name}.yaml"
    rule = load_rule(path)
    assert rule.name == name and [o.kind for o in run_rule(rule)] == [Kind.good]
    return rule


def own(mine: str, name: str, *inputs: str) -> list[str]:
    sizes = [word for i in inputs or ("2,5,16",) for word in ("--input", i)]
    return ["--from", f"{mine}:{name}", *sizes, "--trust-remote-code"]


def field(rule: Rule, name: str) -> str:
    """The text of a field of one line or one block."""
    lines = iter(rule.text.splitlines())
    line = next(x for x in lines if x.startswith(f"{name}: "))
    if not line.endswith("|"):
        return line.partition(": ")[2]
    block = []
    for below in lines:
        if not below.startswith("  "):
            break
        block.append(below.strip())
    return "\n".join(block)


def test_a_module_nothing_is_known_for(run: Run, mine: str, tmp_path: Path) -> None:
    rule = new(run, tmp_path, *own(mine, "Squared"))
    assert field(rule, "match") == "y = scale * down(relu2(up(x)) + 1.5)"
    assert rule.kinds == {"up": "linear", "down": "linear", "scale": "parameter"}
    assert rule.refuse == "to do, no fused function is called yet"
    assert "# replace: y = NF.function(x, up.weight, down.weight, scale)" in rule.text
    (example,) = rule.examples
    assert example.inputs == ((2, 5, 16),) and example.init == {}
    # all it needs of its file, and no more
    source = example.source
    for part in (
        "WIDTH = 16",
        "INNER = 2 * WIDTH",
        "class Base(nn.Module):",
        "# what stands between",
    ):
        assert part in source
    for part in ("swish", "partial", "import", "class Packed"):
        assert part not in source
    assert source.index("class Base") < source.index("class Squared")


def test_slices_and_a_replacement_that_is_known(run: Run, mine: str, tmp_path: Path) -> None:
    rule = new(run, tmp_path, *own(mine, "Packed"))
    assert field(rule, "match") == "part, part2 = split(both(x))\ny = down(silu(part) * part2)"
    assert rule.call == "NF.mlp" and not rule.refuse
    assert rule.shard == {"gate": "column", "up": "column", "down": "row"}
    assert [(w.names, w.how, w.sources) for w in rule.weights] == [
        (("gate", "up"), "split", ("both",))
    ]
    (outcome,) = run_rule(rule)
    assert outcome.proof is not None and outcome.proof.passed
    assert "def swish(x, beta: float = 1.0):" in rule.examples[0].source


def test_a_value_read_twice_and_arguments_of_the_class(
    run: Run,
    mine: str,
    tmp_path: Path,
) -> None:
    shared = new(run, tmp_path, *own(mine, "Shared", "2,5,16", "2,5,16"), name="shared")
    assert field(shared, "match") == "h = exp(x) * y\ny2 = h - mean(h, -1, keepdim=True)"
    assert shared.examples[0].inputs == ((2, 5, 16), (2, 5, 16))
    init = {"width": 16, "eps": 0.001}
    norm = new(run, tmp_path, *own(mine, "Norm"), "--init", json.dumps(init), name="norm")
    assert norm.examples[0].init == init == parse_init(json.dumps(init))
    assert field(norm, "match") == (
        "h = fp32(x)\ny = weight * like(h * rsqrt(mean(square(h), -1, keepdim=True) + 0.001), x)"
    )
    assert norm.call == "NK.rms_norm"


def test_several_results(run: Run, mine: str, tmp_path: Path) -> None:
    rule = new(run, tmp_path, *own(mine, "Two", "2,5,16", "2,5,16"))
    assert field(rule, "match") == "y1 = exp(x) * y\ny2 = cos(x)"
    assert rule.outputs == ("y1", "y2")


def test_operations_of_several_operands(run: Run, mine: str, tmp_path: Path) -> None:
    rule = new(run, tmp_path, *own(mine, "Bounded"))
    norm = "rms_norm(x, weight, 1e-06)"
    assert field(rule, "match") == f"y = clamp(clamp(sigmoid({norm}), None, 0.75), 0.125, None) * x"


def test_what_only_a_hand_writes_is_not_called_unsayable(
    run: Run, mine: str, tmp_path: Path
) -> None:
    rule = new(run, tmp_path, *own(mine, "BoundedByTensor", "2,5,16", "2,5,16"), name="first")
    assert "clamp" not in field(rule, "match")
    inputs = own(mine, "BoundedByTensor", "2,5,16", "2,5,16")
    ran = run("rules", "new", "second", *inputs, "-o", str(tmp_path / "rules"))
    assert "clamp  a pattern says it only if written by hand" in ran.out


def test_what_no_pattern_can_say_is_left_out(run: Run, mine: str, tmp_path: Path) -> None:
    rule = new(run, tmp_path, *own(mine, "Mixed"))
    assert field(rule, "match") == "y = down(silu(x)) * 0.5"
    line = MINE[: MINE.index("rolled = torch.roll")].count("\n") + 1
    assert f"roll (line {line})" in " ".join(rule.text.split("\n# "))


def test_an_input_that_examples_cannot_have(run: Run, mine: str, tmp_path: Path) -> None:
    """The example is then made from the pattern, and is about the part only."""
    rule = new(run, tmp_path, *own(mine, "Cached", "2,5,16", "keep=2,5,16:bool"))
    assert field(rule, "match") == "y = exp(x) * x2"
    assert "class CachedPart(nn.Module):" in rule.examples[0].source
    assert "return torch.exp(x) * x2" in rule.examples[0].source


def test_what_lies_beside_the_file_does_not_go_into_an_example(
    run: Run,
    tmp_path: Path,
) -> None:
    (tmp_path / "beside_it.py").write_text(
        "import torch\n\ndef lift(x):\n    return torch.exp(x)\n"
    )
    path = tmp_path / "uses.py"
    path.write_text(
        "from torch import nn\nfrom beside_it import lift\n\n\nclass M(nn.Module):\n"
        "    def forward(self, x):\n        return lift(x) * x\n"
    )
    rule = new(run, tmp_path, *own(str(path), "M"))
    assert field(rule, "match") == "y = exp(x) * x" and "beside_it" not in rule.text


def test_a_class_of_a_model(run: Run, tmp_path: Path) -> None:
    gated = new(run, tmp_path, "--from", "gemma3_text:Gemma3MLP", name="gated")
    assert field(gated, "match") == "y = down_proj(gelu_tanh(gate_proj(x)) * up_proj(x))"
    assert gated.call == "NF.mlp"
    assert (
        "F.gelu(self.gate_proj(x), approximate='tanh') * self.up_proj(x)"
        in gated.examples[0].source
    )
    router = new(run, tmp_path, "--from", "qwen3_next:Qwen3NextRMSNormGated", name="router")
    assert field(router, "match").endswith(") * silu(gate), gate)")


def test_the_class_with_most_that_no_rule_claims(run: Run, tmp_path: Path) -> None:
    """Of GPT-2's classes, and it is said which."""
    ran = run("rules", "new", "mine", "--from", "gpt2", "-o", str(tmp_path))
    assert ran.code == 0, ran.err
    first = ran.out.splitlines()[0]
    assert first.startswith(f"wrote {tmp_path / 'mine.yaml'}, from gpt2:")
    (outcome,) = run_rule(load_rule(tmp_path / "mine.yaml"))
    assert outcome.kind is Kind.good


def test_the_commands_it_prints_work(run: Run, mine: str, tmp_path: Path) -> None:
    ran = run("rules", "new", "mine", *own(mine, "Squared"), "-o", str(tmp_path / "r"))
    commands = [line.partition("it:")[2].split() for line in ran.out.splitlines() if " it:" in line]
    assert len(commands) == 2
    tested, used = (run(*words[1:]) for words in commands)
    assert tested.code == 0 and tested.out.startswith(
        "1 example of 1 rule: 0 missing, 0 noisy, 0 failed"
    )
    assert used.code == 0 and "AP402: " in used.out
    assert "mine  Squared:" in used.out and "to do, no fused function is called yet" in used.out


MISTAKES = {
    "no name": (["my rule", "--from", "gpt2"], ["`my rule` is no rule name", "rules new my_rule"]),
    "no module": (["mine", "--from", "{mine}:Sqared"], ["did you mean `Squared`"]),
    "not allowed": (["mine", "--from", "{mine}:Squared", "--input", "2,5,16"], ["autoport rules new mine --from"]),
    "no inputs": (["mine", "--from", "{mine}:Squared"], ["sizes of the inputs", "--input 2,8,64"]),
    "no model": (["mine", "--from", "gtp2"], ["gtp2", "gpt2"]),
    "no class": (["mine", "--from", "gpt2:GPT2MPL"], ["no class `GPT2MPL`; did you mean `GPT2MLP`?", "GPT2Attention"]),
    "nothing": (["mine", *own("{mine}", "Nothing")], ["no rule could be written", "explain match"]),
    "wrong sizes": (["mine", *own("{mine}", "Squared", "2,5,17")], ["does not run on 2,5,17", "mine.py:"]),
    "options of a file": (["mine", "--from", "gpt2", "--input", "2,5"], ["FILE.py:CLASS only"]),
    "no source": (["mine"], ["--from"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_explained(run: Run, mine: str, tmp_path: Path, case: str) -> None:
    typed, words = MISTAKES[case]
    out = tmp_path / "rules"
    ran = run("rules", "new", *(t.replace("{mine}", mine) for t in typed), "-o", str(out))
    assert (ran.code, ran.out) == (2, "") and "Traceback" not in ran.err
    said = " ".join(ran.err.replace("│", " ").split())
    assert [w for w in words if w not in said] == [], said
    assert not list(tmp_path.rglob("*.yaml"))


def test_the_first_rule_of_a_folder_that_the_project_names(
    run: Run, mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.autoport]\nrules = ["rules"]\n')
    monkeypatch.chdir(tmp_path)
    assert run("rules", "list").code == 2  # it names what is not there
    rule = new(run, tmp_path, *own(mine, "Squared"))
    assert "mine " in run("rules", "list").out and rule.refuse


def test_a_file_is_never_written_over(run: Run, mine: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine", encoding="utf-8")
    ran = run("rules", "new", "mine", *own(mine, "Squared"), "-o", str(tmp_path))
    assert ran.code == 2 and "exists already" in ran.err and str(path) in ran.err
    assert path.read_text(encoding="utf-8") == "mine"
    (tmp_path / "file").write_text("")
    ran = run("rules", "new", "other", *own(mine, "Squared"), "-o", str(tmp_path / "file"))
    assert ran.code == 2 and "cannot be written" in ran.err


def test_operations_of_one_operand_are_spelled() -> None:
    """Those that are not cannot be part of a made example; they are named here so that none is forgotten."""
    assert UNARY - set(SPELLED) == {"rotate_half", "rotate_pairs", "repeat_pairs"}
