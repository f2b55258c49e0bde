"""The lint on one example of each finding, on a clean kernel, and on our own kernels."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.nki_sim.lint import CODES, lint, lint_text

KERNELS = Path(__file__).resolve().parents[2] / "neuron_autoport" / "kernels" / "device"

CLEAN = """
import nki
import nki.isa as nisa
import nki.language as nl

class Sizes(nl.NKIObject):
    rows: int = 128

def helper(tile, sizes):
    for start in range(0, 8, 4):
        nisa.memset(dst=tile[:, start : start + 4], value=0.0)

@nki.jit
def kernel(x, weight, eps=1e-6):
    tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    if weight == None:
        helper(tile, Sizes())
    parts = [1, 2]
    parts[0] = {"a": 3}["a"]
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=eps, engine=nisa.engine.vector)
    return tile

def host(x, *, names=None):
    return [n for n in names] if names is not None else None
"""


def test_a_clean_kernel_and_what_lies_outside_of_it() -> None:
    assert lint_text(CLEAN) == []


BODIES = {
    "is": ["if x is None:\n    return x", "flag = x is not None"],
    "assignment": [
        "t = nl.ndarray((2, 2), dtype=nl.float32)\nt[0, 0] = 1.0",
        "t = nl.zeros\nt = nl.ndarray((2, 2), nl.float32)\nt += 1",
    ],
    "raw-value": [
        "nl.ndarray((2, 2), dtype=nl.float32, buffer='sbuf')",
        "nisa.tensor_copy(dst=x, src=x, engine=5)",
        "nisa.tensor_tensor(dst=x, data1=x, data2=x, op='add')",
    ],
    "no-hardware": [
        "nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.divide)", "y = nl.mod(x, x)",
    ],
    "wrapper": ["y = nl.add(x, x)", "y = nl.load(x)", "y = nl.softmax(x)"],
    "matmul-flag": ["nisa.nc_matmul(x, x, x)", "nisa.nc_matmul(dst=x, stationary=x, moving=x)"],
    "dynamic-loop": ["for i in nl.dynamic_range(4):\n    pass"],
    "dictionary-key": ["d = {1: 2}"],
    "impure": ["global count\ncount = 1"],
    "foreign": ["y = torch.zeros(2)", "y = np.float32(1)"],
    "import": ["import math"],
    "construct": [
        "y = [i for i in range(3)]", "y = (lambda v: v)(x)", "try:\n    pass\nexcept KeyError:\n    pass",
        "with x:\n    pass", "y = (z := 1)", "y = {1, 2}", "f(*x)", "del x",
        "match x:\n    case 1:\n        pass",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "body"), [(code, body) for code, bodies in BODIES.items() for body in bodies]
)
def test_found_in_a_kernel(code: str, body: str) -> None:
    source = "@nki.jit\ndef kernel(x):\n" + textwrap.indent(body, "    ")
    codes = {f.code for f in lint_text(source)}
    assert codes == {code}, codes


@pytest.mark.parametrize(
    ("code", "source"),
    [("old-namespace", "import neuronxcc.nki as nki"),
     ("old-namespace", "from neuronxcc import nki"),
     ("class", "class Config:\n    rows = 1"),
     ("class", "class Config(dict):\n    pass"),
     ("class", "class Config(NKIObject, Base):\n    pass"),
     ("keyword-only", "@nki.jit\ndef kernel(x, *, eps=1.0):\n    return x")],
)  # fmt: skip
def test_found_in_a_module(code: str, source: str) -> None:
    assert [f.code for f in lint_text(source)] == [code]


def test_every_code_has_an_example() -> None:
    assert {*BODIES, "old-namespace", "class", "keyword-only"} == set(CODES)


def test_functions_a_kernel_calls_are_read_and_others_are_not() -> None:
    source = """
    def used(x):
        return x is None

    def host(x):
        return x is None

    def kernel(x):
        return used(x)

    KERNEL = nki.jit(kernel)
    """
    found = lint_text(textwrap.dedent(source), "mine.py")
    assert [f.line for f in found] == [3]
    assert str(found[0]) == ("mine.py:3: x is None: `is` and `is not` are not known; write == None")


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda p: p.name)
def test_our_kernels_are_clean(path: Path) -> None:
    assert [str(f) for f in lint(path)] == []
