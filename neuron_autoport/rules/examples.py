"""Run the examples of a rule: trace, match, rewrite and prove each, and say what went otherwise.

This runs the Python text of a rule file, so only `autoport rules test` does it, and for rules that do not come
with this package only when the user allows it. An example sees torch, nn, F, math,
ALL_ATTENTION_FUNCTIONS and ACT2FN, and a `config` that names the attention function (`single.py`).
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torch import nn

from neuron_autoport.cache import cache_folder
from neuron_autoport.errors import RuleError
from neuron_autoport.models.inputs import Input
from neuron_autoport.models.python_file import import_file, write_whole
from neuron_autoport.prove.modules import ModuleProof, prove_module
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.rewrite.reasons import STATED
from neuron_autoport.rules.builtin import is_builtin
from neuron_autoport.rules.conditions import broken
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.matcher import find
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.rule import Example, Rule
from neuron_autoport.single import Make, for_real, random_calls, trace_alone
from neuron_autoport.trace.module_trace import TraceEnd
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.spans import running_where

_IMPORTS = (
    "import math; import torch; import torch.nn.functional as F; from torch import nn; "
    "from transformers.activations import ACT2FN; "
    "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS"
)
_PREFIX = "neuron_autoport_example_"
_MOST_ELEMENTS = 2**24


class Kind(StrEnum):
    """How an example came out; the value is the word in the output."""

    good = "good"
    missing = "missing"
    noisy = "noisy"
    failed = "failed"
    broken = "broken"


@dataclass(frozen=True)
class Outcome:
    """One example: what came of it, why in words, and the proof if the rule fused it."""

    rule: Rule
    example: Example
    kind: Kind
    message: str = ""
    proof: ModuleProof | None = None

    @property
    def where(self) -> str:
        """`file:line` of the example's source in the rule file."""
        return f"{self.rule.path}:{self.example.line}"


class _Broken(Exception):
    """The example's own code does not run."""


def check_trusted(
    rules: Iterable[Rule], trust_remote_code: bool, command: str = "autoport rules test"
) -> None:
    """Refuse to run examples of others, unless the user allows it. command: as it was given.

    Raises:
        RuleError: naming the flag.
    """
    foreign = [r for r in rules if not is_builtin(r) and (r.examples or r.rejects)]
    if foreign and not trust_remote_code:
        what = f"rules test runs the code of the examples, and {foreign[0].name} is not a built-in rule"
        step = f"read the examples, then: {command} --trust-remote-code"
        raise RuleError(what, str(foreign[0].path), step)


def run_rule(rule: Rule, library: Iterable[Rule] | None = None) -> Iterator[Outcome]:
    """All examples of one rule, in the order of the file. The rule is tried alone, beside no other.

    Args:
        library: rules that give roles to child modules; None for the built-in ones.
    """
    others = tuple(load_rules() if library is None else library)
    for example in sorted((*rule.examples, *rule.rejects), key=lambda e: e.line):
        yield run_example(rule, example, others)


def run_example(rule: Rule, example: Example, library: Iterable[Rule] = ()) -> Outcome:
    """One example: traced on meta in bfloat16; if the rule fuses it, proved on random inputs.

    Proved with adversarial weights, in float32 and in bfloat16. A rule that refuses fuses nothing: its
    examples only have to match, or not.
    """
    try:
        cls = _load_class(example)
        roles = Roles((rule, *library))
        plan = _plan(rule, example, cls, roles)
        if rule.refuse and any(r.code == STATED for r in plan.refusals):
            if example.because is None:
                return Outcome(rule, example, Kind.good, rule.refuse)
            message = f"matched, and should not be: {example.because}"
            return Outcome(rule, example, Kind.noisy, message)
        if not plan.sites:
            if example.because is not None:
                return Outcome(rule, example, Kind.good)
            return Outcome(rule, example, Kind.missing, _why_not(rule, plan, roles))
        proof = _prove(example, cls, plan)
    except _Broken as error:
        return Outcome(rule, example, Kind.broken, str(error))
    if example.because is not None:
        message = f"fused, and should not be: {example.because}"
        if not proof.passed:
            message += f"; the rewrite is wrong, too: {_figures(proof)}"
        return Outcome(rule, example, Kind.noisy, message, proof)
    if not proof.passed:
        return Outcome(
            rule, example, Kind.failed, f"the rewrite is wrong: {_figures(proof)}", proof
        )
    return Outcome(rule, example, Kind.good, _figures(proof), proof)


def _load_class(example: Example) -> type[nn.Module]:
    """The example's last module class, from a file whose lines are numbered as in the rule file."""
    text = _IMPORTS + "\n" * max(example.line - 1, 1) + example.source
    name = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    path = cache_folder("examples") / f"{name}.py"
    if name not in sys.modules:
        write_whole(path, text)
    try:
        space = vars(import_file(name, path)).values()
    except (Exception, SystemExit) as error:  # code of others: it raises what it likes
        raise _Broken(_said(error)) from None
    own = [v for v in space if isinstance(v, type) and v.__module__ == name]
    modules = [c for c in own if issubclass(c, nn.Module)]
    if not modules:
        raise _Broken("its source defines no subclass of nn.Module")
    return modules[-1]


def _maker(example: Example, cls: type[nn.Module]) -> Make:
    """What makes an instance of the example."""

    def make() -> nn.Module:
        try:
            return cls(**example.init)
        except (Exception, SystemExit) as error:
            raise _Broken(f"{cls.__name__} cannot be built: {_said(error)}") from None

    return make


def _inputs(example: Example) -> tuple[Input, ...]:
    return tuple(Input(shape) for shape in example.inputs)


def _plan(rule: Rule, example: Example, cls: type[nn.Module], roles: Roles) -> ClassPlan:
    """The plan of the example with this one rule."""
    if sum(math.prod(shape) for shape in example.inputs) > _MOST_ELEMENTS:
        raise _Broken(f"its inputs have more than {_MOST_ELEMENTS:,} elements")
    try:
        _, trace = trace_alone(_maker(example, cls), _inputs(example))
    except _Broken:
        raise
    except (Exception, SystemExit) as error:
        raise _Broken(_said(error)) from None
    if trace.end is not None and trace.end.code == "AP102":  # a mistake of the example's
        raise _Broken(_ended(trace.end))
    return plan_class(trace, (rule,), roles=roles)


def _prove(example: Example, cls: type[nn.Module], plan: ClassPlan) -> ModuleProof:
    module = for_real(_maker(example, cls))
    rewritten = generate([plan], f"{cls.__name__}, an example of a rule").classes[plan]
    try:
        return prove_module("", module, plan, rewritten, random_calls(_inputs(example)))
    except SystemExit as error:
        raise _Broken(_said(error)) from None


def _figures(proof: ModuleProof) -> str:
    """In one line: torch adds the frames of its C++ to some errors."""
    return proof.figures().partition("\n")[0]


def _why_not(rule: Rule, plan: ClassPlan, roles: Roles) -> str:
    """The reason of the refusal that got furthest, with its line in the rule file."""
    if plan.trace.end is not None:
        return f"{plan.trace.end.code}: {_ended(plan.trace.end)}"
    whole = [r for r in plan.refusals if r.steps == "all"]
    if whole:
        place = f" (line {whole[0].span.line})" if whole[0].span is not None else ""
        return f"{whole[0].code}: {whole[0].message}{place}"
    found = find(rule, plan.graph, roles)
    unmet = [why for m in found.matches if (why := broken(rule.require, m)) is not None]
    if unmet:  # of a rule that refuses the plan does not tell it
        return f"AP301: {unmet[0]}{_place(found.matches[0].interior)}"
    miss = found.near_miss
    if miss is None:
        return "AP210: nothing of the pattern is there"
    place = _place(() if miss.op is None else (miss.op,))
    return f"AP210: {miss.done} of {miss.total} steps, then: {miss.reason}{place}"


def _place(ops: Iterable[Op]) -> str:
    """The line of the first of these operations that has one."""
    spans = [span for op in ops for span in op.spans]
    return f" (line {spans[0].line})" if spans else ""


def _ended(end: TraceEnd) -> str:
    return end.message + _line(end.where)


def _said(error: BaseException) -> str:
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first}{_line(running_where(error))}"


def _line(where: str | None) -> str:
    """Lines of an example's file are those of the rule file; those of other files say nothing here."""
    file, _, line = (where or "").rpartition(":")
    return f" (line {line})" if Path(file).stem.startswith(_PREFIX) else ""
