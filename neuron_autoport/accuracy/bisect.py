"""Which rules explain a failure: the smallest set without which the check passes.

The check is asked again with rules switched off, so that the answer is an observation, not a guess. A failure
that stays with every rule switched off is not a rule's: it comes from the host, or the model's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

# Up to so many suspects every combination is tried; beyond, the set found is minimal, not always smallest.
_ALL_COMBINATIONS = 8

Passes = Callable[[frozenset[str]], bool]


def smallest_set(suspects: Sequence[str], passes: Passes) -> tuple[str, ...] | None:
    """The smallest set of suspects without which the check passes.

    Args:
        suspects: what may be switched off. passes: does the check pass with these switched off?

    Returns:
        None if it fails with all of them off; () if it passes with none off.
    """
    known: dict[frozenset[str], bool] = {}

    def ask(off: frozenset[str]) -> bool:
        if off not in known:
            known[off] = passes(off)
        return known[off]

    every = frozenset(suspects)
    if ask(frozenset()):
        return ()
    if not suspects or not ask(every):
        return None
    for one in suspects:
        if ask(frozenset({one})):
            return (one,)
    minimal = _minimal(every, list(suspects), ask)
    if len(suspects) > _ALL_COMBINATIONS:
        return tuple(s for s in suspects if s in minimal)
    for size in range(2, len(minimal)):
        for chosen in combinations(suspects, size):
            if ask(frozenset(chosen)):
                return chosen
    return tuple(s for s in suspects if s in minimal)


def _minimal(every: frozenset[str], order: list[str], ask: Passes) -> frozenset[str]:
    """Switch suspects on again while the check still passes; halves first (delta debugging)."""
    off = every
    step = max(1, len(order) // 2)
    while step:
        for start in range(0, len(order), step):
            fewer = off - frozenset(order[start : start + step])
            if fewer != off and fewer and ask(fewer):
                off = fewer
        step //= 2
    return off
