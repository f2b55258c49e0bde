"""What runs where on the target: for each phase and class a kernel, or torch with the reason.

The plugin's functions fall back to torch without a word when one of their limits is broken. The plan says
it beforehand; `autoport inspect --target` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.kernels.calls import KernelCall
from neuron_autoport.kernels.limits import KERNELS


@dataclass(frozen=True)
class Choice:
    """One call of one class in one phase.

    runs: `kernel` of NF, `kernel: NAME` of ours or the user's, or `torch: reason`. Of what could be a part of
    another call: `in CALL`, or `apart: reason`. limits: what a kernel of ours takes.
    """

    phase: str
    class_name: str
    call: str
    runs: str
    limits: tuple[str, ...] = ()


@dataclass
class HostPlan:
    """All choices of a model, and what is kept whole on every rank."""

    choices: list[Choice] = field(default_factory=list)
    replicated: dict[str, str] = field(default_factory=dict)

    def add(self, phase: str, class_name: str, call: str, reason: str | None) -> None:
        """Note a call; no reason means that the kernel runs."""
        self._add(
            Choice(phase, class_name, call, "kernel" if reason is None else f"torch: {reason}")
        )

    def fold(self, phase: str, class_name: str, what: str, call: str, reason: str | None) -> None:
        """Note whether something is a part of another call; no reason means that it is."""
        self._add(Choice(phase, class_name, what, folded(call, reason)))

    def add_own(self, phase: str, class_name: str, call: KernelCall) -> None:
        """Note a call of an NK function."""
        limits = tuple(str(limit) for limit in call.kernel.limits)
        self._add(Choice(phase, class_name, call.kernel.name, call.runs, limits))

    def _add(self, choice: Choice) -> None:
        if choice not in self.choices:
            self.choices.append(choice)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "choices": [vars(c) for c in self.choices],
            "replicated": dict(self.replicated),
        }


def folded(call: str, reason: str | None) -> str:
    """What a plan says of a part of a call: that it is in it, or why it is not."""
    return f"in {call}" if reason is None else f"apart: {reason}"


def own_attention(facts: LayerFacts, dtype: torch.dtype) -> KernelCall:
    """NK.softcap_attention for a layer's prefill, where no NF function can be it."""
    kernel = KERNELS["softcap_attention"]
    head = torch.empty(1, facts.heads, 1, facts.head_dim, dtype=dtype, device="meta")
    return KernelCall(kernel, kernel.broken({"q": head, "k": head, "v": head}))
