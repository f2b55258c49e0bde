"""Every broken kernel is caught by the rule it breaks, runs without its fault, and every rule has one."""

from __future__ import annotations

import pytest

from tests.nki_sim.broken import memory, operands, sequence, types
from tests.nki_sim.broken.case import CASES
from tests.nki_sim.errors import RULES, SimError
from tests.nki_sim.namespace import OURS

SOURCES = (memory, operands, sequence, types)  # importing them enters their kernels

pytestmark = pytest.mark.skipif(not OURS, reason="the vendor's simulator has checks of its own")


@pytest.mark.parametrize("name", CASES)
def test_caught(name: str) -> None:
    case = CASES[name]
    with pytest.raises(SimError) as caught:
        case.run(bad=True)
    assert caught.value.rule == case.rule, caught.value


@pytest.mark.parametrize("name", CASES)
def test_right_without_the_fault(name: str) -> None:
    CASES[name].run(bad=False)


def test_every_rule_has_a_broken_kernel() -> None:
    assert {case.rule for case in CASES.values()} == set(RULES)


def test_messages_say_what_and_why() -> None:
    with pytest.raises(SimError) as caught:
        CASES["unwritten_tail_rows_are_used"].run(bad=True)
    text = str(caught.value)
    assert "[128, 64] float32 in sbuf" in text
    assert "56 of 128 rows are not written, the first is 72" in text
    assert RULES["unwritten-read"] in text
