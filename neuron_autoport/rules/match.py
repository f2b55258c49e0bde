"""What a match of a rule is: captures by name, the operations it replaces; or how near it came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neuron_autoport.trace.facts import LinearFacts
from neuron_autoport.trace.ops import Op

if TYPE_CHECKING:
    from neuron_autoport.rules.rule import Rule

# Steps of a pattern so short that half of it is found everywhere.
SHORT = 3


@dataclass(frozen=True)
class ModuleRef:
    """A captured child module: its path and what it is."""

    path: str
    facts: LinearFacts
    op: Op


@dataclass(frozen=True)
class RoleRef:
    """A captured child module that another rule matches as a whole: its path, that rule, that match."""

    path: str
    rule: Rule
    match: Match
    op: Op


@dataclass(frozen=True)
class Columns:
    """What a value cut from a linear module's result is: those columns of it, laid out anew.

    columns: of the module's output, in the order they have in the value. tail: sizes of the value's
    dimensions beside batch and token. heads_first: [B, tail[0], T, ...], else [B, T, tail[0], ...].
    """

    module: str
    columns: tuple[int, ...]
    tail: tuple[int, ...]
    heads_first: bool

    def layout(self, heads: str) -> str:
        """Method calls that bring [B, T, columns] into the value's layout.

        Args:
            heads: source text of the sizes that the columns are unfolded into.
        """
        if len(self.tail) == 1:
            return ""
        return f".unflatten(-1, {heads})" + ".transpose(1, 2)" * self.heads_first

    @property
    def heads(self) -> tuple[int, ...]:
        """Sizes the columns are unfolded into; how many heads there are is the rank's own."""
        return (-1, *self.tail[1:])


@dataclass(frozen=True)
class Match:
    """Captures of one match. `interior`: ops it replaces, outputs among them; `outputs` by name.

    columns: for outputs that are parts of one linear module's result, which parts.
    """

    values: dict[str, Any]
    interior: tuple[Op, ...] = ()
    steps: int = 0
    columns: dict[str, Columns] = field(default_factory=dict)

    def bind(self, name: str, value: Any) -> Match:
        return Match({**self.values, name: value}, self.interior, self.steps, self.columns)

    def take(self, *ops: Op, steps: int = 1) -> Match:
        if not ops and not steps:
            return self
        interior = list(self.interior)
        for op in ops:
            interior += (op, *op.absorbed)
        return Match(self.values, tuple(interior), self.steps + steps, self.columns)

    def place_of(self, value: Any) -> Op | None:
        """The value, or, if it has no place in the source, the last step done that has one."""
        if isinstance(value, Op) and value.spans:
            return value
        return next((op for op in reversed(self.interior) if op.spans), None)


@dataclass(frozen=True)
class NearMiss:
    """The best failed attempt: steps done of all, why it stopped, and the op it stopped at.

    op: where that has no place in the source, as a parameter or a number, the last step done.
    sure: only a layout step stood in the way, so it is one however few steps the pattern has.
    passed: the operations it found.
    """

    done: int
    total: int
    reason: str
    op: Op | None
    sure: bool = False
    passed: frozenset[Op] = frozenset()

    @property
    def far(self) -> bool:
        """Did it get so far that the rest is worth a word?"""
        return is_far(self.done, self.total)


def is_far(done: int, total: int) -> bool:
    """Is so much of a pattern there that the rest is worth a word? Half of a short one is found everywhere."""
    return total > SHORT and done * 2 > total


@dataclass(frozen=True)
class Found:
    matches: tuple[Match, ...]
    near_miss: NearMiss | None


NOTHING = Found((), None)
