"""`autoport rules new` of a module that a rule can say in part only: what it leaves out, why, and what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Run

LAYER = """\
import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Mixer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        return self.down(torch.exp(self.up(x)) * 0.5)


class Fixed(Mixer):
    def __init__(self, width):
        super().__init__(width)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mixer, self.fixed = Norm(), Mixer(), Fixed(16)

    def forward(self, x):
        h = self.norm(x)
        mixed = self.mixer(h)
        lifted = torch.exp(mixed)
        rolled = torch.roll(lifted, 1, dims=1)
        both = torch.tanh(torch.relu(rolled) * lifted)
        return self.fixed(both)
"""


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    path = tmp_path / "layer.py"
    path.write_text(LAYER, encoding="utf-8")
    return path


def new(run: Run, source: str, out: Path, *more: str) -> Ran:
    ran = run("rules", "new", "mine", "--from", source, "-o", str(out), *more)
    assert (ran.code, ran.err) == (0, ""), ran.err
    return ran


def line_of(text: str) -> int:
    return LAYER[: LAYER.index(text)].count("\n") + 1


def left_out(ran: Ran) -> list[tuple[str, ...]]:
    """Line, label and reason of each operation that is told."""
    return [
        tuple(re.split(r"  +", x.strip())) for x in ran.out.splitlines() if x.startswith("  line ")
    ]


def test_each_operation_with_its_reason(run: Run, layer: Path, tmp_path: Path) -> None:
    own = ("--input", "2,5,16", "--trust-remote-code")
    ran = new(run, f"{layer}:Layer", tmp_path / "rules", *own)
    assert "  y = tanh(relu(x) * x2)\n" in ran.out
    line = line_of("both = ")
    assert f"the rule has 3 of the 8 operations of Layer (layer.py:{line}). Left out:\n" in ran.out
    assert left_out(ran) == [
        (f"line {line_of('h = ')}", "norm(...)",
         "the child Norm, which has the role rms_norm; what reads it is left out"),
        (f"line {line_of('mixed = ')}", "mixer(...)", "the child Mixer, which no rule matches as a whole"),
        (f"line {line_of('lifted = ')}", "exp", "its result is read outside this part as well"),
        (f"line {line_of('rolled = ')}", "roll", "no pattern can say it"),
        (f"line {line_of('return self.fixed')}", "fixed(...)",
         "the child Fixed, which no rule matches as a whole"),
    ]  # fmt: skip
    # of Fixed no command can be given: what it is made with is not known
    steps = ran.out.partition("go on:")[2].splitlines()
    assert [s.strip() for s in steps] == [
        f"autoport rules new mixer --from {layer}:Mixer --input 2,5,16 -o {tmp_path / 'rules'} "
        "--trust-remote-code",
        "autoport explain role    (a rule may ask for a child by its role)",
    ]


def test_the_next_command_works(run: Run, layer: Path, tmp_path: Path) -> None:
    own = ("--input", "2,5,16", "--trust-remote-code")
    ran = new(run, f"{layer}:Layer", tmp_path / "rules", *own)
    command = ran.out.partition("go on:")[2].splitlines()[0].split()
    again = run(*command[1:])
    assert again.code == 0 and "  y = down(exp(up(x)) * 0.5)\n" in again.out
    assert "Left out" not in again.out and "go on" not in again.out


def test_a_layer_of_a_model(run: Run, tmp_path: Path) -> None:
    """Lines of the source that the class has here; GPT-2's are read from it."""
    from transformers.models.gpt2 import modeling_gpt2

    lines = Path(modeling_gpt2.__file__).read_text(encoding="utf-8").splitlines()
    ran = new(run, "gpt2:GPT2Block", tmp_path)
    assert "the rule has 1 of the 6 operations of GPT2Block (modeling_gpt2.py:" in ran.out
    told = {label: (int(line.split()[1]), why) for line, label, why in left_out(ran)}
    assert set(told) == {"ln_1(...)", "attn(...)", "add", "ln_2(...)", "mlp(...)"}
    for label, (line, _) in told.items():
        word = "residual" if label == "add" else f"self.{label.partition('(')[0]}("
        assert word in lines[line - 1]
    assert told["ln_1(...)"][1] == "the child LayerNorm, which has the role layer_norm"
    assert told["attn(...)"][1] == "the child GPT2Attention, which no rule matches as a whole"
    assert f"autoport rules new gpt2_attention --from gpt2:GPT2Attention -o {tmp_path}\n" in ran.out


def test_a_rule_of_all_of_it_says_nothing_of_that(run: Run, layer: Path, tmp_path: Path) -> None:
    own = ("--input", "2,5,16", "--trust-remote-code")
    ran = new(run, f"{layer}:Mixer", tmp_path / "rules", *own)
    assert "Left out" not in ran.out and "go on" not in ran.out
