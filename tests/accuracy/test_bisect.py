"""The smallest set of rules behind a failure, against a search through all sets."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from neuron_autoport.accuracy.bisect import smallest_set

RULES = [f"Class{i}:rule" for i in range(6)]


def exhaustive(culprits: list[frozenset[str]]) -> int:
    """Size of the smallest set that holds at least one of each group, by trying all."""
    for size in range(len(RULES) + 1):
        for chosen in combinations(RULES, size):
            if all(group & set(chosen) for group in culprits):
                return size
    raise AssertionError


@pytest.mark.parametrize("seed", range(30))
def test_smallest_of_all_sets(seed: int) -> None:
    """It fails while any group of rules is on as a whole: each must lose at least one."""
    chance = random.Random(seed)
    culprits = [
        frozenset(chance.sample(RULES, chance.randint(1, 3))) for _ in range(chance.randint(1, 3))
    ]
    asked = []

    def passes(off: frozenset[str]) -> bool:
        asked.append(off)
        return all(group & off for group in culprits)

    found = smallest_set(RULES, passes)
    assert found is not None and passes(frozenset(found))
    assert len(found) == exhaustive(culprits)
    assert len(asked) == len(set(asked)) + 1  # nothing is asked twice but by this test


def test_one_guilty_rule_among_many() -> None:
    many = [f"C:{i}" for i in range(40)]
    assert smallest_set(many, lambda off: "C:17" in off) == ("C:17",)
    two = smallest_set(many, lambda off: {"C:3", "C:30"} <= off)
    assert two == ("C:3", "C:30")


def test_no_rule_explains_it() -> None:
    assert smallest_set(RULES, lambda off: False) is None
    assert smallest_set([], lambda off: False) is None
    assert smallest_set(RULES, lambda off: True) == ()
