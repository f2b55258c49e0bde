"""What runs where on the target: for each phase and class a kernel, or torch with the reason.

The plugin's functions fall back to torch without a word when one of their limits is broken. The plan says
it beforehand; `autoport inspect --target` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuron_autoport.hosts.neuron.probe import LayerFacts

LARGEST_HEAD = 128


@dataclass(frozen=True)
class Choice:
    """One call of one class in one phase. runs: `kernel`, or `torch: reason`."""

    phase: str
    class_name: str
    call: str
    runs: str


@dataclass
class HostPlan:
    """All choices of a model, and what is kept whole on every rank."""

    choices: list[Choice] = field(default_factory=list)
    replicated: dict[str, str] = field(default_factory=dict)

    def add(self, phase: str, class_name: str, call: str, reason: str | None) -> None:
        """Note a call; no reason means that the kernel runs."""
        choice = Choice(phase, class_name, call, "kernel" if reason is None else f"torch: {reason}")
        if choice not in self.choices:
            self.choices.append(choice)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "choices": [vars(c) for c in self.choices],
            "replicated": dict(self.replicated),
        }


def attention_limit(facts: LayerFacts) -> str | None:
    """Why a layer's prefill attention cannot be an NF function; None if it can."""
    if facts.softcap is not None:
        return f"scores are soft-capped at {facts.softcap:g}, which no NF attention does"
    if facts.head_dim > LARGEST_HEAD:
        return f"heads are {facts.head_dim} wide, kernels take {LARGEST_HEAD} at most"
    return None
