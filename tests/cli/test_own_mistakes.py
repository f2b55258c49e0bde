"""`autoport inspect FILE.py:CLASS`: each mistake is explained, with its place and a way on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.own_modules import ARGUMENTS, line_of, write_mine


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return write_mine(tmp_path)


# what is typed after `inspect`, and words of stderr; {mine} is the file
MISTAKES = {
    "no such file": (["{mine}x.py:MLP"], ["There is no such file", "mine.pyx.py"]),
    "no such class": (["{mine}:MPL"], ["has no class `MPL`; did you mean `MLP`"]),
    "which class": (["{mine}"], ["Which class of", "Norm, MLP, Block", "as in"]),
    "no input": (["{mine}:Block"], ["MISSING", "Block.forward takes x.", "--input 2,8,64"]),
    "wrong input": (["{mine}:MLP", "--input", "2;8"], ["`2;8` is no input", "--input 2,8,64"]),
    "wrong kind": (["{mine}:MLP", "--input", "2,8:long"], ["`long` is no kind of input"]),
    "size of zero": (["{mine}:MLP", "--input", "2,0,64"], ["has a size of zero"]),
    "init is no JSON": (["{mine}:Norm", "--input", "2,8,64", "--init", "{{w: 3}}"], ["--init is not JSON", "column 2"]),
    "init is a list": (["{mine}:Norm", "--input", "2,8,64", "--init", "[3]"], ["--init holds no object"]),
    "no such width": (["{mine}:MLP", "--input", "2,8,65"], ["MLP.forward(x) does not run on 2,8,65", ".py:{down}:"]),
    "not made": (["{mine}:Norm", "--input", "2,8,64"], ["Norm(width, eps=1e-06) cannot be made", "--init"]),
    "raises": (["{mine}:Loud", "--input", "2,8,64"], ["Loud.forward(x) does not run", "KeyError", "mine.py:{loud}:"]),
    "no module": (["{mine}:NOT_A_CLASS", "--input", "2,8,64"], ["has no class `NOT_A_CLASS`"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_explained(run: Run, mine: str, case: str) -> None:
    typed, words = MISTAKES[case]
    known = {
        "mine": mine,
        "down": line_of("return self.down(F.silu"),
        "loud": line_of("raise KeyError"),
    }
    ran = run("inspect", *(t.format(**known) for t in typed), "--trust-remote-code")
    assert (ran.code, ran.out) == (2, ""), ran.out
    said = " ".join(ran.err.split())
    wanted = [
        w.format(**known).replace("MISSING", "The sizes of the inputs are missing") for w in words
    ]
    assert [w for w in wanted if w not in said] == [], said
    assert "Traceback" not in ran.err and "try:" in ran.err


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("class M(:\n", "The file is not Python", ":1:9"),
        ("import nothing_of_this_name\nclass M(object): ...\n", "ModuleNotFoundError", ":1:1"),
        ("import sys\nclass M(object): ...\nsys.exit(3)\n", "cannot be run: SystemExit: 3", ":3:1"),
        (
            "class E(BaseException): ...\nclass M(Exception): ...\nraise M('odd')\n",
            "M: odd",
            ":3:1",
        ),
        ("class M(dict): ...\n", "M is no torch.nn.Module", ""),
        ("\0", "The file is not Python", ""),
    ],
)
def test_a_file_that_does_not_run(
    run: Run, tmp_path: Path, text: str, message: str, place: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text, encoding="utf-8")
    ran = run("inspect", f"{path}:M", *ARGUMENTS)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err and f"{path}{place}" in ran.err and "Traceback" not in ran.err
