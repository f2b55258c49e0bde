"""Searching the catalogue: `attention head_dim 256`, `rmsnorm decode`, `moe nkilib trn3`.

A query is words. A size's name followed by a number asks for that size; the names of phases, chips and
sources (nf, own, nkilib) choose; every other word has to be found in an entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from neuron_autoport.catalogue.entry import KINDS, Entry, Need
from neuron_autoport.catalogue.sizes import BY_WORD, PHASES, TARGETS, completed
from neuron_autoport.errors import AutoportError
from neuron_autoport.nearest import near

_IGNORED = frozenset(
    {"a", "an", "and", "for", "in", "kernel", "kernels", "of", "on", "the", "with"}
)
_KIND_ORDER = {kind: number for number, kind in enumerate(KINDS)}
_NUMBER = re.compile(r"\d+")
_PHASE_WORDS = {w: phase for phase, words in PHASES.items() for w in words}


@dataclass(frozen=True)
class Query:
    """What was asked: words, sizes, and what the kernels must be for."""

    words: tuple[str, ...] = ()
    sizes: dict[str, Any] = field(default_factory=dict)
    phases: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        sizes = [f"{name} {value}" for name, value in self.sizes.items()]
        return ", ".join([*self.words, *self.phases, *self.targets, *self.kinds, *sizes])


@dataclass(frozen=True)
class Hit:
    """An entry that has all words of a query. unmet: limits the query's sizes do not keep."""

    entry: Entry
    score: int
    unmet: tuple[Need, ...]


def parse_query(text: str) -> Query:
    """Read a query.

    Raises:
        AutoportError: a number that follows no size.
    """
    tokens = [t for t in re.split(r"[\s,=:]+", text.lower().replace("-", "_")) if t]
    found: dict[str, list[str]] = {"words": [], "phases": [], "targets": [], "kinds": []}
    sizes: dict[str, Any] = {}
    at = 0
    while at < len(tokens):
        token, after = tokens[at], tokens[at + 1 : at + 2]
        at += 1
        if token in BY_WORD and after and _NUMBER.fullmatch(after[0]):
            sizes[BY_WORD[token]] = int(after[0])
            at += 1
        elif _NUMBER.fullmatch(token):
            raise AutoportError(
                f"the number {token} belongs to no size",
                f"query `{text}`",
                f"autoport kernels ... head_dim {token}",
            )
        elif token in _PHASE_WORDS:
            found["phases"].append(_PHASE_WORDS[token])
        elif token in TARGETS:
            found["targets"].append(token)
        elif token in KINDS:
            found["kinds"].append(token)
        elif token not in _IGNORED:
            found["words"].append(token)
    return Query(sizes=sizes, **{name: tuple(values) for name, values in found.items()})


def search(entries: Iterable[Entry], query: Query) -> list[Hit]:
    """The entries a query asks for: first those that take its sizes, closest words before others.

    Raises:
        AutoportError: a word that is in no entry.
    """
    entries = tuple(entries)
    filed = {w for e in entries for w in _filed(e)}
    _check_words(entries, query, filed)
    hits = []
    for entry in entries:
        scores = [_score(entry, word, filed) for word in query.words]
        chosen = (
            (not query.phases or set(query.phases) & set(entry.phases))
            and set(query.targets) <= set(entry.targets)
            and (not query.kinds or entry.kind in query.kinds)
            and all(scores)
        )
        if chosen:
            hits.append(Hit(entry, sum(scores), _unmet(entry, query)))
    hits.sort(key=lambda h: (_answer(h, query), -h.score, _KIND_ORDER[h.entry.kind], h.entry.name))
    return hits


def _answer(hit: Hit, query: Query) -> int:
    """0 if the kernel takes the sizes asked for, 1 if it does not, 2 if they mean nothing to it."""
    sizes = set(completed(query.sizes))
    means = not sizes or any(n.names & sizes for n in hit.entry.needs)
    return 1 if hit.unmet else 0 if means else 2


def _unmet(entry: Entry, query: Query) -> tuple[Need, ...]:
    """The limits that the query's sizes do not keep in any phase asked for; none if one phase is fine."""
    sizes = completed(query.sizes)
    broken = [n for n in entry.needs if n.holds(sizes) is False]
    phases = [p for p in entry.phases if not query.phases or p in query.phases]
    by_phase = [[n for n in broken if n.phase in (None, p)] for p in phases]
    if not all(by_phase):
        return ()
    return tuple(n for n in broken if any(n in found for found in by_phase))


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "").replace("/", "")


def _filed(entry: Entry) -> set[str]:
    """Words an entry is filed under."""
    names = entry.name.lower().split(".")
    return {_plain(w) for w in (*entry.words, *entry.part, *names)}


def _described(entry: Entry) -> set[str]:
    """Words of its description."""
    text = " ".join((entry.does, entry.module, *entry.notes))
    return {_plain(w) for w in re.split(r"[^\w-]+", text) if w}


def _score(entry: Entry, word: str, filed: set[str]) -> int:
    """How well a word describes an entry, 0 if it does not. Descriptions count where nothing is filed.

    Best is what an entry is for: its part, its name, or the first of its words.
    """
    plain = _plain(word)
    if plain in {_plain(w) for w in (*entry.part, entry.name.partition(".")[2], *entry.words[:1])}:
        return 4
    if plain in _filed(entry):
        return 3
    return 1 if plain not in filed and plain in _described(entry) else 0


def _check_words(entries: tuple[Entry, ...], query: Query, filed: set[str]) -> None:
    known = filed | {w for e in entries for w in _described(e)}
    for word in query.words:
        if _plain(word) not in known:
            words = {w for e in entries for w in (*e.words, *e.part)} | set(BY_WORD)
            raise AutoportError(
                f"no kernel has to do with `{word}`{near(word, words)}",
                None,
                "autoport kernels    (without a query: all of them)",
            )
