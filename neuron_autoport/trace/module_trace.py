"""The result of tracing one module class: its graph, what it read, and its children's traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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


class ChildCall(NamedTuple):
    """A call of a child module: its dotted path below the caller, and its own trace."""

    path: str
    trace: ModuleTrace


class _Step(NamedTuple):
    """What is compared of one of the modules that a trace calls.

    caller: the number of the step of what calls it, path: there. names: of its children, if they are to be compared.
    """

    caller: int
    path: str
    kind: type[nn.Module]
    hooked: bool
    names: tuple[str, ...] | None
    expected: Expected


def _called_names(picture: Any, trace: ModuleTrace) -> tuple[str, ...] | None:
    """Names of the children of a module that was read and called, if no more of its picture is left to compare.

    Its class and those of the children that it calls are compared with the traces of these.
    """
    if type(picture) is not tuple or picture[:2] != ("module", trace.module_class):
        return None
    called = {call.path: call.trace.module_class for call in trace.children}
    if any(called.get(name) is not kind for name, kind in picture[2]):
        return None
    return tuple(name for name, _ in picture[2])


@dataclass(frozen=True, eq=False)
class ModuleTrace:
    """One class in one configuration.

    `graph` has a node per torch call and per child call. Each node's meta holds `val` (a meta tensor,
    or the nested result), `spans` (the chain of source expressions) and `inplace`.
    `reads`: what the forward read of the module, and of its children (`child.name`), each value as a picture.
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
        """Would tracing `module` give this same trace? True if all that was read is equal there, and below it."""
        found: list[nn.Module] = []
        current: nn.Module | None = module
        for caller, path, kind, hooked, names, expected in self._steps:
            if found:
                above = found[caller].__dict__
                current = above["_modules"].get(path)
                if current is None:  # of a list, say
                    current = module_at(found[caller], path)
                elif path in above:  # another is read by this name
                    return False
            if current is None or type(current) is not kind:
                return False
            own = current.__dict__
            if hooked is not bool(own["_forward_hooks"] or own["_forward_pre_hooks"]):
                return False
            if names is not None and tuple(own["_modules"]) != names:
                return False
            if not expected.holds_for(current):
                return False
            found.append(current)
        return True

    @cached_property
    def _steps(self) -> tuple[_Step, ...]:
        """What to compare of this module and of those that it calls, callers first."""
        reads = dict(self.reads)
        steps: list[_Step] = []
        for path, trace in self._distinct:
            names = _called_names(reads.get(path), trace)
            if names is not None:
                del reads[path]
            first, *others = trace._steps
            start = len(steps) + 1
            steps.append(first._replace(caller=0, path=path, names=names))
            steps += [step._replace(caller=step.caller + start) for step in others]
        expected = Expected.of(self.module_class, reads)
        return (_Step(0, "", self.module_class, self.hooked, None, expected), *steps)

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
    def ends(self) -> int:
        """How many calls, this one and those below it, were not traced to their end."""
        return (self.end is not None) + sum(child.trace.ends for child in self.children)

    @cached_property
    def below(self) -> tuple[tuple[str, ModuleTrace], ...]:
        """All below this trace, each call by its dotted path; those of a layer are found once for all like it."""
        found: list[tuple[str, ModuleTrace]] = []
        self._add_below("", found)
        return tuple(found)

    def _add_below(self, prefix: str, found: list[tuple[str, ModuleTrace]]) -> None:
        calls = Counter([id(child.trace) for child in self.children])
        for child in self.children:
            path, trace = prefix + child.path, child.trace
            found.append((path, trace))
            if not trace.children:
                continue
            if calls[id(trace)] == 1:
                trace._add_below(f"{path}.", found)
            else:
                found += [(f"{path}.{inner}", part) for inner, part in trace.below]
