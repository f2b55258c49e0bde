"""The nearest valid spellings of a word that is none: for every error that names what may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CUTOFF = 0.6  # of difflib's ratio, 1 for words that are the same; below it guesses are wrong more often than right


def nearest(word: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Words of `known` that are spelled much like `word`, the nearest first; upper and lower case are the same."""
    lower = {name.lower(): name for name in sorted(known)}
    return [lower[n] for n in difflib.get_close_matches(word.lower(), lower, most, _CUTOFF)]


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    found = nearest(word, known)
    return f"; did you mean `{found[0]}`?" if found else ""
