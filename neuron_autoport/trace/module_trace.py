"""The result of tracing one module class: its graph, what it read, and its children's traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx, nn

from neuron_autoport.trace.guards import Expected
from neuron_autoport.trace.members import module_at
from neuron_autoport.trace.spans import Span


def has_hooks(module: nn.Module) -> bool:
    """Does calling the module run code that was registered on this one instance?"""
    own = module.__dict__
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"])


@dataclass(frozen=True)
class TraceEnd:
    """Why a forward was not traced to its end: reason code, message, `file:line`."""

    code: str
    message: str
    where: str | None


@dataclass(frozen=True)
class ChildCall:
    """A call of a child module: its dotted path below the caller, and its own trace."""

    path: str
    trace: ModuleTrace


@dataclass(frozen=True, eq=False)
class ModuleTrace:
    """One class in one configuration.

    `graph` has a node per torch call and per child call. Each node's meta holds `val` (a meta tensor,
    or the nested result), `spans` (the chain of source expressions) and `inplace`.
    `writes`: indices, among the tensors of the call, of those whose data the forward changes.
    `result` is what forward returned, or None where `end` says why it did not; `call` holds the
    positional and keyword arguments it was traced with.
    `asked`: where the value of a tensor was asked for; `sized`: where a size of one was read.
    `hooked`: did the module have forward hooks? Their operations are in the graph, but they are no part of its class.
    `answers`: None, or, in a trace with made-up values, the numbers among them that Python code got.
    """

    module_class: type[nn.Module]
    forward: Callable[..., Any]
    graph: fx.Graph
    inputs: tuple[str, ...]
    reads: dict[str, Any]
    children: tuple[ChildCall, ...]
    result: Any
    end: TraceEnd | None
    assumed: tuple[str, ...]
    call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    writes: tuple[int, ...] = ()
    answers: frozenset[float] | None = None
    asked: tuple[tuple[Span, ...], ...] = ()
    sized: frozenset[tuple[Span, ...]] = frozenset()
    hooked: bool = False

    def holds_for(self, module: nn.Module) -> bool:
        """Would tracing `module` give this same trace? True if all that was read is equal there."""
        if type(module) is not self.module_class or has_hooks(module) != self.hooked:
            return False
        if not self._expected.holds_for(module):
            return False
        below = module._modules
        for path, trace in self._distinct:
            child = below.get(path)
            if child is None:  # of a list, say
                child = module_at(module, path)
            if child is None or not trace.holds_for(child):
                return False
        return True

    @cached_property
    def _expected(self) -> Expected:
        return Expected.of(self.module_class, self.reads)

    @cached_property
    def _distinct(self) -> tuple[tuple[str, ModuleTrace], ...]:
        """The children's traces by path, of several calls in one way a single one."""
        return tuple(dict.fromkeys((c.path, c.trace) for c in self.children))

    def walk(self) -> tuple[tuple[str, ModuleTrace], ...]:
        """This trace and all below it, each call by its dotted path."""
        return ("", self), *self.below

    @cached_property
    def any_hooked(self) -> bool:
        """Has this module, or one that it calls, forward hooks?"""
        return self.hooked or any(child.trace.any_hooked for child in self.children)

    @cached_property
    def below(self) -> tuple[tuple[str, ModuleTrace], ...]:
        """All below this trace, each call by its dotted path; those of a layer are found once for all like it."""
        found: list[tuple[str, ModuleTrace]] = []
        for child in self.children:
            found.append((child.path, child.trace))
            found += [(f"{child.path}.{path}", trace) for path, trace in child.trace.below]
        return tuple(found)
