"""What of a module a new rule leaves out, each operation with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from neuron_autoport.rules.pattern import OPERATIONS
from neuron_autoport.rules.region import Finder, Region
from neuron_autoport.rules.roles import Roles
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.ops import Op, ancestry

_LAYOUT = ("input", "param", "view", "permute", "pieces", "getitem", "slice")


@dataclass(frozen=True)
class LeftOut:
    """An operation of the module that is in no equation of the rule.

    label: as the rule file says it. line: of the module's file; None if it is not known. why: in words.
    child: the class, if it is a call of a child module. sizes: what that one is called with, as `--input` takes it;
    None if it cannot be said there. role: of the child by a rule of the library, None if it has none.
    """

    label: str
    line: int | None
    why: str
    child: type[nn.Module] | None = None
    sizes: tuple[str, ...] | None = None
    role: str | None = None

    def __str__(self) -> str:
        return self.label + (f" (line {self.line})" if self.line is not None else "")


@dataclass(frozen=True)
class Part:
    """The part of a module that a rule is written from, and the rest of it.

    count, whole: operations in the part and in the module; layout and parameters are not counted.
    lines: of the part, the first and the last, in `file`.
    """

    count: int
    whole: int
    lines: tuple[int, int] | None
    file: str | None
    rest: tuple[LeftOut, ...]


def part_of(finder: Finder, region: Region, roles: Roles) -> Part:
    """What `region` is of its graph.

    Args:
        finder: that found it: it knows what a pattern cannot say.
        roles: that child modules have by rules of the library, also where the pattern cannot ask for them.
    """
    outside = left_out(finder, region)
    count = sum(op.name not in _LAYOUT and op not in finder.absorbed for op in region.ops)
    spans = [op.spans[0] for op in region.ops if op.spans]
    lines = (min(s.line for s in spans), max(s.end_line for s in spans)) if spans else None
    why = _Reasons(finder, region, roles)
    rest = dict.fromkeys(map(why.left_out, outside))
    file = Path(spans[0].file).name if spans else None
    return Part(count, count + len(outside), lines, file, tuple(rest))


def left_out(finder: Finder, region: Region) -> list[Op]:
    """Operations of the module that are not in the region, layout and parameters apart."""
    inside = region.ops | finder.absorbed
    return [op for op in finder.graph.ops if op.name not in _LAYOUT and op not in inside]


class _Reasons:
    def __init__(self, finder: Finder, region: Region, roles: Roles) -> None:
        self.finder, self.region, self.roles = finder, region, roles
        self.before = set().union(*(ancestry(root) for root in region.roots))

    def left_out(self, op: Op) -> LeftOut:
        module = op.name == "module"
        label = f"{op.target}(...)" if module else op.name.removeprefix("unknown:")
        line = op.spans[0].line if op.spans else None
        if not module or op.trace is None or linear_of(op.trace) is not None:
            return LeftOut(label, line, self.why(op))
        role = next((r for r in sorted(self.roles.by_role) if self.roles.of(op.trace, r)), None)
        child = op.trace.module_class
        known = f"the child {child.__name__}, which has the role {role}"
        missing = f"the child {child.__name__}, which no rule matches as a whole"
        said = known if role is not None else missing
        if self.finder.is_known(op):
            said = f"{said}; {self.why(op)}"
        return LeftOut(label, line, said, child, _sizes(op), role)

    def why(self, op: Op) -> str:
        """Why the pattern ends before this operation, or after it."""
        if op.inplace or op.written:
            return "it changes data in place"
        if op in self.finder.banned:
            return self.finder.banned[op]
        if not self.finder.is_known(op):
            by_hand = op.name in OPERATIONS
            return (
                "a pattern says it only if written by hand" if by_hand else "no pattern can say it"
            )
        if any(user in self.region.ops for user in op.users):
            return "its result is read outside this part as well"
        return "what reads it is left out" if op in self.before else "it is not before this part"


def _sizes(op: Op) -> tuple[str, ...] | None:
    """`2,8,64` or `2,8:int` for each argument of a call; None if one is no tensor."""
    said = []
    for value in op.inputs:
        if not isinstance(value, Op) or value.dtype is None or not value.shape:
            return None
        kind = "" if value.dtype.is_floating_point else ":int"
        kind = ":bool" if value.dtype is torch.bool else kind
        said.append(",".join(map(str, value.shape)) + kind)
    return tuple(said) if not op.attrs.get("kwargs") else None
