"""What the double remembers: every call of a plugin function, what would have run it, and traps.

A *verdict* says what the plugin would do with a call on the device: "kernel", "torch: reason" (the
silent fallback) or "raises: reason". A *trap* is a documented behaviour that gives wrong numbers
without a word; the double reproduces it and writes it down here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

KERNEL = "kernel"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """What would run a call, and the traps it steps into."""

    text: str = KERNEL
    traps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """One executed call: function, step ("prefill 128"), verdict, shapes, dtypes, constants."""

    function: str
    step: str
    verdict: str
    shapes: dict[str, Shape]
    dtypes: dict[str, torch.dtype]
    constants: dict[str, Any]


@dataclass
class GraphSummary:
    """One compiled graph: plugin calls, collectives and other operations by name, and a digest."""

    step: str
    functions: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    tensor_ops: Counter[str] = field(default_factory=Counter)
    digest: str = ""


@dataclass
class CallLog:
    """All calls since the double was installed. `step` names what the runner does just now.

    read: bytes read of each checkpoint tensor. graphs and read outlive `clear` and rounds.
    """

    calls: list[Call] = field(default_factory=list)
    traps: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    graphs: list[GraphSummary] = field(default_factory=list)
    read: Counter[str] = field(default_factory=Counter)
    step: str = "outside a step"

    def of(self, function: str, step: str = "") -> list[Call]:
        """The calls of one function, in steps whose name starts with `step`."""
        return [c for c in self.calls if c.function == function and c.step.startswith(step)]

    def functions(self, step: str = "") -> Counter[str]:
        """How often each function ran, in steps whose name starts with `step`."""
        return Counter(call.function for call in self.calls if call.step.startswith(step))

    def verdicts(self) -> dict[tuple[str, str], set[str]]:
        """(phase, function) -> its verdicts; the phase is the first word of the step."""
        found: dict[tuple[str, str], set[str]] = {}
        for call in self.calls:
            found.setdefault((call.step.partition(" ")[0], call.function), set()).add(call.verdict)
        return found

    def trap(self, function: str, text: str) -> None:
        """Note a trap; `text` holds no run-time figures, so that equal traps are counted."""
        self.traps[f"{function}: {text}"] += 1

    def clear(self) -> None:
        """Forget calls, traps and collectives."""
        self.calls.clear()
        self.traps.clear()
        self.collectives.clear()
