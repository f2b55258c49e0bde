"""Run the examples of a rule: trace, match, rewrite and prove each, and say what went otherwise.

This runs the Python text of a rule file, so only `autoport rules test` does it, and for rules that do not come
with this package only when the user allows it. An example sees torch, nn, F, math,
ALL_ATTENTION_FUNCTIONS and ACT2FN. One that has no `config` of its own is given one that names the
attention function, as in transformers: `ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from neuron_autoport.cache import cache_folder
from neuron_autoport.errors import RuleError
from neuron_autoport.models.weights import adversarial_
from neuron_autoport.prove.modules import RUN_ERRORS, Call, ModuleProof, prove_module
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rewrite.plan import ClassPlan, plan_class
from neuron_autoport.rules.library import is_builtin
from neuron_autoport.rules.matcher import find
from neuron_autoport.rules.rule import Example, Rule
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.module_trace import TraceEnd
from neuron_autoport.trace.tracer import running_where, trace_model

_IMPORTS = (
    "import math; import torch; import torch.nn.functional as F; from torch import nn; "
    "from transformers.activations import ACT2FN; "
    "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS"
)
_PREFIX = "neuron_autoport_example_"
_CALLS = 2


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


def check_trusted(rules: Iterable[Rule], trust_remote_code: bool) -> None:
    """Refuse to run examples of others, unless the user allows it.

    Raises:
        RuleError: naming the flag.
    """
    foreign = [r for r in rules if not is_builtin(r) and (r.examples or r.rejects)]
    if foreign and not trust_remote_code:
        what = f"rules test runs the code of the examples, and {foreign[0].name} is not a built-in rule"
        step = "read the examples, then repeat the command with --trust-remote-code"
        raise RuleError(what, str(foreign[0].path), step)


def run_rule(rule: Rule) -> Iterator[Outcome]:
    """All examples of one rule, in the order of the file. The rule is tried alone, beside no other."""
    for example in sorted((*rule.examples, *rule.rejects), key=lambda e: e.line):
        yield run_example(rule, example)


def run_example(rule: Rule, example: Example) -> Outcome:
    """One example: traced on meta in bfloat16; if the rule fuses it, proved on random inputs.

    Proved with adversarial weights, in float32 and in bfloat16.
    """
    try:
        cls = _load_class(example)
        plan = _plan(rule, example, cls)
        if not plan.sites:
            if example.because is not None:
                return Outcome(rule, example, Kind.good)
            return Outcome(rule, example, Kind.missing, _why_not(rule, plan))
        proof = _prove(example, cls, plan)
    except _Broken as error:
        return Outcome(rule, example, Kind.broken, str(error))
    if example.because is not None:
        message = f"fused, and should not be: {example.because}"
        if not proof.passed:
            message += f"; the rewrite is wrong, too: {proof.figures()}"
        return Outcome(rule, example, Kind.noisy, message, proof)
    if not proof.passed:
        return Outcome(
            rule, example, Kind.failed, f"the rewrite is wrong: {proof.figures()}", proof
        )
    return Outcome(rule, example, Kind.good, proof.figures(), proof)


def _load_class(example: Example) -> type[nn.Module]:
    """The example's last module class, from a file whose lines are numbered as in the rule file."""
    text = _IMPORTS + "\n" * max(example.line - 1, 1) + example.source
    name = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    if name not in sys.modules:
        path = cache_folder("examples") / f"{name}.py"
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (*RUN_ERRORS, SyntaxError) as error:
            del sys.modules[name]
            raise _Broken(_said(error)) from None
    space = vars(sys.modules[name]).values()
    own = [v for v in space if isinstance(v, type) and v.__module__ == name]
    modules = [c for c in own if issubclass(c, nn.Module)]
    if not modules:
        raise _Broken("its source defines no subclass of nn.Module")
    return modules[-1]


def _build(example: Example, cls: type[nn.Module], attention: str | None) -> nn.Module:
    """An instance in eval mode. attention: what its configuration is to name, None for its own."""
    module: Any
    try:
        module = cls(**example.init).eval()
    except RUN_ERRORS as error:
        raise _Broken(f"{cls.__name__} cannot be built: {_said(error)}") from None
    config = getattr(module, "config", None)
    if config is None:
        module.config = SimpleNamespace(_attn_implementation=attention or "sdpa")
    elif attention is not None:
        module.config = copy.copy(config)
        module.config._attn_implementation = attention
    return module


def _plan(rule: Rule, example: Example, cls: type[nn.Module]) -> ClassPlan:
    """The plan of the example with this one rule.

    Built in bfloat16, which shows every cast: in float32 a cast to float32 would leave no node.
    """
    with torch.device("meta"):
        module = _build(example, cls, TRACE_ATTENTION).to(torch.bfloat16)
        inputs = tuple(torch.empty(s, dtype=torch.bfloat16) for s in example.inputs)
    trace = trace_model(module, inputs)
    if trace.end is not None and trace.end.code == "AP102":  # a mistake of the example's
        raise _Broken(_ended(trace.end))
    return plan_class(trace, (rule,))


def _prove(example: Example, cls: type[nn.Module], plan: ClassPlan) -> ModuleProof:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = _build(example, cls, None)
    adversarial_(module)
    generator = torch.Generator().manual_seed(1)
    calls: list[Call] = []
    for _ in range(_CALLS):
        args = tuple(torch.randn(s, generator=generator) for s in example.inputs)
        calls.append((args, {}))
    rewritten = generate([plan], f"{cls.__name__}, an example of a rule").classes[plan]
    return prove_module("", module, plan, rewritten, calls)


def _why_not(rule: Rule, plan: ClassPlan) -> str:
    """The reason of the refusal that got furthest, with its line in the rule file."""
    if plan.trace.end is not None:
        return f"{plan.trace.end.code}: {_ended(plan.trace.end)}"
    whole = [r for r in plan.refusals if r.steps == "all"]
    if whole:
        place = f" (line {whole[0].span.line})" if whole[0].span is not None else ""
        return f"{whole[0].code}: {whole[0].message}{place}"
    miss = find(rule, plan.graph).near_miss
    if miss is None:
        return "AP210: nothing of the pattern is there"
    spans = miss.op.spans if miss.op is not None else ()
    place = f" (line {spans[0].line})" if spans else ""
    return f"AP210: {miss.done} of {miss.total} steps, then: {miss.reason}{place}"


def _ended(end: TraceEnd) -> str:
    return end.message + _line(end.where)


def _said(error: BaseException) -> str:
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first}{_line(running_where(error))}"


def _line(where: str | None) -> str:
    """Lines of an example's file are those of the rule file; those of other files say nothing here."""
    file, _, line = (where or "").rpartition(":")
    return f" (line {line})" if Path(file).stem.startswith(_PREFIX) else ""
