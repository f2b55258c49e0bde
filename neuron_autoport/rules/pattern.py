"""A rule's pattern as a small tree of values, operations and captured modules.

`y = down(act(gate(x)) * up(x))` is a `Statement` whose target is `y`. `parse.py` makes the trees from text,
`matcher.py` finds them in a graph.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

Pattern: TypeAlias = (
    "Var | Const | OpPattern | ModulePattern | ChoicePattern | After | Past | Like | Either | Maybe"
)

UNARY = frozenset(
    {"square", "rsqrt", "sqrt", "exp", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "quick_gelu",
     "relu", "relu2", "neg", "cos", "sin", "abs", "log", "softplus", "reciprocal", "rotate_half",
     "rotate_pairs", "repeat_pairs"}
)  # fmt: skip
REDUCTIONS = frozenset({"mean", "sum"})
# Operations with a fixed number of operands that are neither operators nor unary.
ARITY = {
    "attention": 3, "matmul": 2, "layer_norm": 4, "rms_norm": 3, "fp32": 1,
         "unsqueeze": 2, "first": 2, "rest": 2, "cat": 2, "even": 1, "odd": 1, "heads_first": 1,
    "pairs_as_complex": 1, "complex_as_pairs": 1, "clamp": 3,
}  # fmt: skip
OPERATIONS = UNARY | REDUCTIONS | set(ARITY) | {"like", "after", "past", "split", "cut"}
COMMUTATIVE = frozenset({"add", "mul"})


@dataclass(frozen=True)
class Var:
    """Any value; the same value wherever the name stands again."""

    name: str


@dataclass(frozen=True)
class Const:
    value: float | int | None


@dataclass(frozen=True)
class OpPattern:
    """A canonical operation on these operands, with these attributes."""

    name: str
    inputs: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ModulePattern:
    """A call of a child module that is captured under `name`."""

    name: str
    inputs: tuple[Pattern, ...]


@dataclass(frozen=True)
class ChoicePattern:
    """One of several operations; which one is captured under `name`."""

    name: str
    inputs: tuple[Pattern, ...]


@dataclass(frozen=True)
class After:
    """A value computed from the captured one, and from no other of the rule's outputs."""

    name: str


@dataclass(frozen=True)
class Past:
    """A value computed from the captured one with no linear map or other product in between."""

    name: str


@dataclass(frozen=True)
class Like:
    """`value` cast to the dtype of the captured `model`."""

    value: Pattern
    model: str


@dataclass(frozen=True)
class Either:
    """One of several patterns, tried in their order: `a | b`."""

    options: tuple[Pattern, ...]

    def absent(self, option: Pattern) -> tuple[str, ...]:
        """Names that are None if this is the one."""
        return self._absent[id(option)]

    @functools.cached_property
    def _absent(self) -> dict[int, tuple[str, ...]]:
        names = {id(p): names_in(p) for p in self.options}
        every = set[str]().union(*names.values())
        return {option: tuple(sorted(every - own)) for option, own in names.items()}


@dataclass(frozen=True)
class Maybe:
    """An optional part: `whole`, or only `rest` of it; then what `whole` alone binds is None."""

    whole: Pattern
    rest: Pattern

    @functools.cached_property
    def absent(self) -> tuple[str, ...]:
        """Names that are None when the part is not there."""
        return tuple(sorted(names_in(self.whole) - names_in(self.rest)))


@dataclass(frozen=True)
class Statement:
    """One equation. `targets` are the names left of `=`; `split` marks consecutive slices.

    cut: the targets are any parts of the value that layout steps alone lead to, in any order.
    """

    targets: tuple[str, ...]
    pattern: Pattern
    split: bool = False
    cut: bool = False


def parts(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns directly below this one."""
    if isinstance(pattern, Like):
        return (pattern.value,)
    if isinstance(pattern, Either):
        return pattern.options
    if isinstance(pattern, Maybe):
        return (pattern.whole,)  # holds `rest`, too
    if isinstance(pattern, OpPattern | ModulePattern | ChoicePattern):
        return pattern.inputs
    return ()


def is_step(pattern: Pattern) -> bool:
    """Does it ask for an operation, apart from what is below it?"""
    return isinstance(pattern, Like | OpPattern | ModulePattern | ChoicePattern | After | Past)


def count_steps(pattern: Pattern) -> int:
    """How many operations a pattern asks for: the measure of how far a match got."""
    if isinstance(pattern, Either):
        return max(count_steps(p) for p in pattern.options)
    return is_step(pattern) + sum(count_steps(p) for p in parts(pattern))


def operations_in(pattern: Pattern) -> frozenset[str]:
    """Names of the operations it asks for, or may ask for, by name."""
    own = {pattern.name} if isinstance(pattern, OpPattern) else set[str]()
    return frozenset(own.union(*(operations_in(p) for p in parts(pattern))))


def names_in(pattern: Pattern) -> set[str]:
    """All captures a pattern binds or reads."""
    own: set[str] = set()
    if isinstance(pattern, Var | After | Past | ModulePattern | ChoicePattern):
        own = {pattern.name}
    elif isinstance(pattern, Like):
        own = {pattern.model}
    return own.union(*(names_in(p) for p in parts(pattern)))


def looks_at_casts(pattern: Pattern) -> bool:
    """Does the pattern name a cast? Then all casts count; else they are transparent."""
    if isinstance(pattern, Like) or (isinstance(pattern, OpPattern) and pattern.name == "fp32"):
        return True
    return any(looks_at_casts(p) for p in parts(pattern))


def absent_names(pattern: Pattern) -> set[str]:
    """Captures that may be None because the part that binds them is optional or in one alternative."""
    found: set[str] = set()
    if isinstance(pattern, Maybe):
        found |= set(pattern.absent)
    if isinstance(pattern, Either):
        for option in pattern.options:
            found |= set(pattern.absent(option))
    return found.union(*(absent_names(p) for p in parts(pattern)))
