"""A pattern rule: what it matches, under which conditions, and what stands there instead."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_autoport.rules.pattern import Statement, count_steps, looks_at_casts, operations_in
from neuron_autoport.rules.roots import needs, roots

if TYPE_CHECKING:
    from neuron_autoport.rules.match import Match

KINDS = ("linear", "parameter", "number", "float32", "value")
SHARDS = ("column", "row", "heads", "replicate", "plan")


@dataclass(frozen=True)
class WeightSpec:
    """How a fused weight is made: `stack` of whole captured linears, or `split` of one into equals."""

    names: tuple[str, ...]
    how: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """One `nn.Module` of the rule's own tests.

    source: Python text; its last module class is meant. inputs: shapes of forward's arguments.
    because: why the rule must leave it alone, None if it must fuse it. init: arguments of the class.
    line: of the rule file, where the source starts.
    """

    source: str
    inputs: tuple[tuple[int, ...], ...] = ((2, 5, 16),)
    because: str | None = None
    init: dict[str, Any] = field(default_factory=dict)
    line: int = 1


@dataclass(frozen=True)
class Rule:
    """One rule file.

    match: equations that are replaced; given: equations that must hold beside, and stay.
    kinds: what each capture is. choices: for a captured operation, the operations it may be and
    how the replacement spells each. require: conditions, by text. replace: `targets = expression`;
    decode: another expression for the decode phase. refuse: instead of a replacement, why the target
    has none: what matches stays in torch, and the report says so. check: of a rule in Python, why a
    match may not be used.
    """

    name: str
    summary: str
    path: Path
    match: tuple[Statement, ...]
    replace: ast.Assign
    given: tuple[Statement, ...] = ()
    kinds: dict[str, str] = field(default_factory=dict)
    choices: dict[str, dict[str, str]] = field(default_factory=dict)
    require: tuple[tuple[str, ast.Expression], ...] = ()
    neuron: tuple[tuple[str, ast.Expression], ...] = ()
    weights: tuple[WeightSpec, ...] = ()
    shard: dict[str, str] = field(default_factory=dict)
    role: str = ""
    decode: ast.expr | None = None
    refuse: str = ""
    examples: tuple[Example, ...] = ()
    rejects: tuple[Example, ...] = ()
    text: str = ""
    check: Callable[[Match], str | None] | None = None

    def kind_of(self, name: str) -> str:
        return self.kinds.get(name, "value")

    @property
    def roles(self) -> dict[str, str]:
        """Captured modules that must have a role, and which: what no other kind is."""
        return {name: kind for name, kind in self.kinds.items() if kind not in KINDS}

    @cached_property
    def steps(self) -> int:
        """How many operations the rule asks for."""
        return sum(count_steps(s.pattern) for s in (*self.match, *self.given))

    @cached_property
    def roots(self) -> tuple[frozenset[str], ...]:
        """For each equation, those of `given` last, the operations it can hold at."""
        return tuple(roots(s.pattern, self.choices) for s in (*self.match, *self.given))

    @cached_property
    def needs(self) -> frozenset[str]:
        """Operations without any of which it can neither match nor come so near that it is told."""
        return needs((*self.match, *self.given), self.choices)

    @cached_property
    def operations(self) -> frozenset[str]:
        """Names of the operations in it."""
        found = (operations_in(s.pattern) for s in (*self.match, *self.given))
        return frozenset[str]().union(*found)

    @cached_property
    def sees_casts(self) -> bool:
        """Do casts count in its match? Else they are transparent."""
        typed = "float32" in self.kinds.values()
        return typed or any(looks_at_casts(s.pattern) for s in self.match)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names the match gives to the rest of the code: what the replacement assigns, in order."""
        names = (n for t in self.replace.targets for n in ast.walk(t))
        return tuple(n.id for n in names if isinstance(n, ast.Name))

    @property
    def named(self) -> set[str]:
        """All names on the left of the pattern's equations."""
        return {n for s in (*self.match, *self.given) for n in s.targets}

    @property
    def call(self) -> str:
        """The function the replacement calls, such as `NF.mlp`."""
        if self.refuse:
            return "torch"
        for node in ast.walk(self.replace.value):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                base = node.func.value
                if isinstance(base, ast.Name) and base.id in ("NF", "NK"):
                    return f"{base.id}.{node.func.attr}"
        return "?"
