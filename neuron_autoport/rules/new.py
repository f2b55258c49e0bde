"""Write a rule file from a module: its pattern, an example, and a replacement where one is known.

The text is tried before it is given back: it loads, and the rule matches its own example.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from neuron_autoport.errors import RuleError
from neuron_autoport.models.inputs import Input
from neuron_autoport.models.own_module import OwnModule
from neuron_autoport.models.python_file import write_whole
from neuron_autoport.nearest import near
from neuron_autoport.port import Port
from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.rules.equations import Draft, write_equations
from neuron_autoport.rules.example_made import made_example
from neuron_autoport.rules.example_source import NoExample, own_source
from neuron_autoport.rules.examples import Kind, run_rule
from neuron_autoport.rules.left_out import Part, left_out, part_of
from neuron_autoport.rules.new_text import ExampleText, rule_text
from neuron_autoport.rules.plain import load_plain_rule
from neuron_autoport.rules.region import Finder
from neuron_autoport.rules.reuse import reuse
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.single import trace_alone
from neuron_autoport.trace.module_trace import ModuleTrace

_TRIES = 4
# A pattern, an example of it, and what found its region and knows why it ends there.
_Try = tuple[Draft, ExampleText, Finder]


@dataclass(frozen=True)
class NewRule:
    """text: of the file. match: its equations. call: the function it calls; None if it refuses yet.

    part: what it is of the module.
    """

    text: str
    match: str
    made_from: str
    call: str | None
    part: Part


def check_name(name: str) -> None:
    """A rule's name, which also is its file's.

    Raises:
        RuleError: it is none.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        step = (
            f"autoport rules new {re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_') or 'my_rule'} ..."
        )
        raise RuleError(f"`{name}` is no rule name: letters, digits and _", None, step)


def rule_from_own(name: str, own: OwnModule, library: Iterable[Rule], command: str) -> NewRule:
    """A rule from a module of the user's. Its example is the module's own source where that stands alone.

    Raises:
        RuleError: nothing of the module can be said as a pattern.
    """
    library = tuple(library)
    module, trace = trace_alone(own.new, own.inputs, torch.bfloat16)
    plan = plan_class(trace, library, roles=Roles(library))
    _check_end(trace, own.name)
    tries: list[_Try] = []
    try:
        cls = type(module)
        if cls.__module__ != own.made_by.__module__:
            raise NoExample("the class comes from another file")
        text = own_source(cls, sys.modules[cls.__module__], own.path.read_text(encoding="utf-8"))
        example = ExampleText(text, _shapes(own.inputs), own.init)
        finder = Finder(plan.graph, Roles(library))
        draft = write_equations(plan.graph, finder)
        tries += [(draft, example, finder)] if draft is not None else []
    except NoExample:
        pass  # the example is made from the pattern then
    every = itertools.chain(tries, _made_drafts(plan))
    return _first_good(name, plan, every, library, own.name, command)


def rule_from_model(
    name: str, plan: ClassPlan, library: Iterable[Rule], made_from: str, command: str
) -> NewRule:
    """A rule from one class of a small model; its example is made from the pattern.

    Raises:
        RuleError: nothing of the class can be said as a pattern.
    """
    _check_end(plan.trace, made_from)
    return _first_good(name, plan, _made_drafts(plan), tuple(library), made_from, command)


def _first_good(
    name: str,
    plan: ClassPlan,
    tries: Iterable[_Try],
    library: tuple[Rule, ...],
    made_from: str,
    command: str,
) -> NewRule:
    """The first draft whose rule matches its example."""
    said = "no operation of it is one that a pattern knows"
    for draft, example, finder in tries:
        known = reuse(draft, plan)
        part = part_of(finder, draft.region, Roles(library))
        for again in (known, None) if known is not None else (None,):
            text = rule_text(name, draft, example, again, part.rest, made_from, command)
            said = _fault(name, text, library)
            if not said:
                match = "\n".join(map(str, draft.equations))
                return NewRule(text, match, made_from, again.rule.call if again else None, part)
    step = "`autoport explain match` tells what a pattern can say; autoport rules show gated_mlp"
    raise RuleError(f"no rule could be written from {made_from}: {said}", made_from, step)


def _made_drafts(plan: ClassPlan) -> Iterator[_Try]:
    """Patterns with examples made from them, the largest region first."""
    finder = Finder(plan.graph)
    for _ in range(_TRIES):
        draft = write_equations(plan.graph, finder, float_only=torch.bfloat16)
        if draft is None:
            return
        part = "Part" if left_out(finder, draft.region) else ""
        cls = plan.trace.module_class.__name__ + part
        yield draft, ExampleText(*made_example(draft, cls), {}), finder
        finder.banned |= dict.fromkeys(
            draft.region.roots, "a rule of it does not match its own example"
        )


def _fault(name: str, text: str, library: tuple[Rule, ...]) -> str:
    """Why the rule is not good: it does not load, or its own example does not do what it says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        write_whole(path, text)
        try:
            rule = load_plain_rule(path, path.read_bytes())
        except RuleError as error:
            return error.what
        for outcome in run_rule(rule, library):
            if outcome.kind is not Kind.good:
                return f"its example is {outcome.kind.value}: {outcome.message}"
    return ""


def _check_end(trace: ModuleTrace, name: str) -> None:
    if trace.end is not None:
        step = f"autoport explain {trace.end.code}"
        what = f"{trace.end.code}: {name} was not traced to its end: {trace.end.message}"
        raise RuleError(what, trace.end.where, step)


def _shapes(inputs: tuple[Input, ...]) -> tuple[tuple[int, ...], ...]:
    if any(i.kind != "float" or i.name is not None for i in inputs):
        raise NoExample("examples take floats by position")
    return tuple(i.shape for i in inputs)


def choose_class(port: Port, wanted: str | None, model: str) -> ClassPlan:
    """The class of a model that a rule is written from: by name, or the one with most that no rule claims.

    Raises:
        RuleError: the model has no such class.
    """
    plans = {p.trace.module_class.__name__: p for p in reversed(port.plans)
             if not p.trace.module_class.__module__.startswith("torch.")}  # fmt: skip
    if wanted is not None:
        if wanted not in plans:
            listed = ", ".join(sorted(plans))
            what = f"{model} has no class `{wanted}`{near(wanted, plans)}"
            raise RuleError(what, model, f"name one of: {listed}")
        return plans[wanted]
    sizes = {name: _unclaimed(plan) for name, plan in plans.items()}
    return plans[max(sorted(sizes), key=sizes.__getitem__)]


def _unclaimed(plan: ClassPlan) -> int:
    """Size of the largest region of a class that no site has a part of."""
    whole = plan.trace.end is None
    draft = next(_made_drafts(plan), (None,))[0] if whole else None
    claimed = {op for site in plan.sites for op in site.match.interior}
    if draft is None or claimed & draft.region.ops:
        return 0
    return draft.region.size
