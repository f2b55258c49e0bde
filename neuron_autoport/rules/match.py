"""What a match of a rule is: captures by name, the operations it replaces; or how near it came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from neuron_autoport.trace.facts import LinearFacts
from neuron_autoport.trace.ops import Op


@dataclass(frozen=True)
class ModuleRef:
    """A captured child module: its path and what it is."""

    path: str
    facts: LinearFacts
    op: Op


@dataclass(frozen=True)
class Match:
    """Captures of one match. `interior`: ops it replaces, outputs among them; `outputs` by name."""

    values: dict[str, Any]
    interior: tuple[Op, ...] = ()
    steps: int = 0

    def bind(self, name: str, value: Any) -> Match:
        return replace(self, values={**self.values, name: value})

    def take(self, *ops: Op, steps: int = 1) -> Match:
        ops = tuple(o for op in ops for o in (op, *op.absorbed))
        return replace(self, interior=(*self.interior, *ops), steps=self.steps + steps)


@dataclass(frozen=True)
class NearMiss:
    """The best failed attempt: steps done of all, why it stopped, and the op it stopped at."""

    done: int
    total: int
    reason: str
    op: Op | None


@dataclass(frozen=True)
class Found:
    matches: tuple[Match, ...]
    near_miss: NearMiss | None
