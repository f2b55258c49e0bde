"""Loads: what a batch of prompts looks like. Token ids are drawn at random, the same for every implementation."""

from __future__ import annotations

import random
from dataclasses import dataclass

# Prompt and answer lengths of each kind of load; mixed goes through its prompt lengths by turns.
_PREFILL, _DECODE = (512, 1), (16, 64)
_MIXED_PROMPTS, _MIXED_ANSWER = (32, 128, 64, 384, 16, 256, 96, 192), 32
_SERVED, _REQUESTS = (128, 32), 4  # requests for each that is under way at once
KINDS = ("prefill", "decode", "mixed", "serve")


@dataclass(frozen=True)
class Load:
    """One measurement: prompts of these lengths, each answered with `answer` tokens.

    at_once: how many are under way at once; of other kinds than `serve` all of them.
    """

    kind: str
    prompts: tuple[int, ...]
    answer: int
    at_once: int

    @property
    def name(self) -> str:
        return f"{self.kind}, batch {self.at_once}"

    @property
    def tokens(self) -> int:
        """What throughput counts: prompt tokens of a prefill, else tokens answered."""
        return sum(self.prompts) if self.kind == "prefill" else self.answer * len(self.prompts)

    @property
    def longest(self) -> int:
        """Positions the longest sequence needs."""
        return max(self.prompts) + self.answer

    def draw(self, vocabulary: int, seed: int) -> list[list[int]]:
        """Token ids, below `vocabulary`; new ones for every seed, so that no prefix is cached."""
        source = random.Random(f"{self.name} {seed}")
        return [[source.randrange(vocabulary) for _ in range(n)] for n in self.prompts]


def load_of(kind: str, batch: int) -> Load:
    """A load of KINDS with a batch of prompts."""
    if kind == "mixed":
        lengths = tuple(_MIXED_PROMPTS[i % len(_MIXED_PROMPTS)] for i in range(batch))
        return Load(kind, lengths, _MIXED_ANSWER, batch)
    if kind == "serve":
        return Load(kind, (_SERVED[0],) * (_REQUESTS * batch), _SERVED[1], batch)
    prompt, answer = _PREFILL if kind == "prefill" else _DECODE
    return Load(kind, (prompt,) * batch, answer, batch)
