"""The attention calls of a module in one forward of the model, in their order: each has a vLLM layer of its own.

A layer that attends twice, or runs in several passes, keeps the keys and values of each call apart: what a call of one
token sees is what the same call of earlier tokens left. Which call it is, the order in the graph of the model tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.port import Port
from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.ops import Op

LAYER = "attn"  # vLLM's own backend has it there, and its loaders know the name
_TURNS = "attention_turns"


@dataclass(frozen=True)
class Calls:
    """The attention calls of one module in one forward. passes: how often the module itself runs."""

    asked: tuple[Op, ...]
    passes: int

    def names(self) -> tuple[str, ...]:
        """Names of the layers; vLLM takes no second number in a path, so it is no list of modules."""
        more = range(1, len(self.asked))
        return (LAYER, *(f"{LAYER}_{i}" for i in more))


def attention_calls(port: Port) -> dict[str, Calls]:
    """The calls of every module that attends, by path."""
    asked: dict[str, tuple[Op, ...]] = {}
    passes: Counter[str] = Counter()
    for path, part in port.trace.walk():
        own = tuple(op for op in canonical_graph(part).ops if op.name == "attention")
        asked[path] = (*asked.get(path, ()), *own)
        passes[path] += 1
    return {path: Calls(ops, passes[path]) for path, ops in asked.items() if ops}


def check_stages(calls: dict[str, Calls], stages: int, where: str) -> None:
    """A stage of a pipeline runs once for a step.

    Raises:
        HostError: there are several stages, and a module that runs in several passes.
    """
    again = next((path for path, c in calls.items() if c.passes > 1), None)
    if stages > 1 and again is not None:
        what = f"AP501: {again} runs {calls[again].passes} times in one pass of the model, a pipeline's stage once"
        raise HostError(what, where, "vllm serve MODEL --pipeline-parallel-size 1")


class Turns:
    """Which layer of a module its next attention call has.

    Args:
        place: of the module, for messages. names: of its layers, in the order of the calls.
    """

    def __init__(self, place: str, names: tuple[str, ...]) -> None:
        self.place, self.names, self.at = place, names, 0

    def take(self) -> str:
        """The name of the layer whose turn it is."""
        if self.at >= len(self.names):
            raise ValueError(
                f"{self.place} attends more than the {len(self.names)} times it has caches for"
            )
        self.at += 1
        return self.names[self.at - 1]


def give_turns(module: nn.Module, place: str, calls: Calls) -> None:
    """Let a module with several calls take its layers in turn."""
    if len(calls.asked) > 1:
        setattr(module, _TURNS, Turns(place, calls.names()))


def layer_of(module: nn.Module) -> Any:
    """The vLLM layer of the attention call that a module makes now."""
    turns = getattr(module, _TURNS, None)
    return getattr(module, LAYER if turns is None else turns.take())


def turns_of(model: nn.Module) -> list[Turns]:
    """Those of all modules of a model."""
    found: Iterator[Any] = (getattr(m, _TURNS, None) for m in model.modules())
    return [t for t in found if t is not None]


def start(turns: list[Turns]) -> None:
    """Before a forward: each module's first call is next."""
    for one in turns:
        one.at = 0


def check_all_taken(turns: list[Turns]) -> None:
    """After a forward. Compiled code has its layers written into it and takes no turn.

    Raises:
        ValueError: a module attended less often than in its graph, so a cache lacks these tokens.
    """
    for one in turns:
        if one.at not in (0, len(one.names)):
            raise ValueError(
                f"{one.place} attended {one.at} times, not {len(one.names)} as in its graph"
            )
