"""One module by itself, not as a part of a model: built, traced, and its rewrite proved.

The examples of rule files, `autoport inspect FILE.py:CLASS` and `autoport rules new` go through here.
A module whose configuration names the attention function is given one that names the tracer's leaf. A module
without a `config` is given one that says only that, as transformers' modules have:
`ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from neuron_autoport.models.inputs import Call, Input, meta_call, random_call
from neuron_autoport.models.weights import adversarial_
from neuron_autoport.port import Port, plan_trace, replan
from neuron_autoport.prove.model import Dropped, Proof
from neuron_autoport.prove.modules import RUN_ERRORS, ModuleProof, prove_module, prove_rewritten
from neuron_autoport.prove.sizes import at_other_sizes
from neuron_autoport.rewrite.emit import Generated, generate
from neuron_autoport.rewrite.install import install_all
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.tracer import trace_model

Make = Callable[[], nn.Module]
CALLS = 2


def on_meta(make: Make, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """An instance without data, in eval mode, its attention one leaf of a trace.

    In bfloat16 every cast shows: in float32 a cast to float32 would leave no node.
    """
    try:
        with torch.device("meta"):
            module = make()
    except RUN_ERRORS:  # its constructor reads values: made for real, then emptied
        module = make().to("meta")
    _name_attention(module, TRACE_ATTENTION)
    return module.eval().to(dtype)


def for_real(make: Make) -> nn.Module:
    """An instance on the CPU in float32, in eval mode, with adversarial weights; always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
    _name_attention(module, None)
    module = module.eval().float()
    adversarial_(module)
    return module


def _name_attention(module: nn.Module, name: str | None) -> None:
    """Let every configuration name this attention function; None leaves the one it names."""
    part: Any
    copies: dict[int, Any] = {}
    for part in module.modules():
        config = getattr(part, "config", None)
        if name is not None and hasattr(config, "_attn_implementation"):
            if id(config) not in copies:
                copies[id(config)] = copy.copy(config)
                copies[id(config)]._attn_implementation = name
            part.config = copies[id(config)]
    if getattr(module, "config", None) is None:
        given: Any = module
        given.config = SimpleNamespace(_attn_implementation=name or "sdpa")


def trace_alone(
    make: Make, inputs: Iterable[Input], dtype: torch.dtype = torch.bfloat16
) -> tuple[nn.Module, ModuleTrace]:
    """An instance on meta, and the trace of one call of it."""
    module = on_meta(make, dtype)
    args, kwargs = meta_call(inputs, dtype)
    return module, trace_model(module, args, kwargs)


def random_calls(inputs: Iterable[Input], count: int = CALLS) -> list[Call]:
    """Arguments of `count` calls, always the same."""
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(inputs)
    return [random_call(inputs, generator) for _ in range(count)]


def prove_alone(
    port: Port, module: nn.Module, calls: list[Call], rules: Iterable[Rule], title: str
) -> tuple[Port, Generated, Proof]:
    """Prove every rewritten class of a module on real calls, and the module with all of them.

    Args:
        port: its plan. module: a real instance, see `for_real`. calls: what it is called with.
        title: stands in the first line of the generated file.

    Returns:
        The plan without what failed, its classes, and the proof; `dropped` names what failed.
    """
    return _Alone(module, calls, tuple(rules), title).run(port)


class _Alone:
    def __init__(
        self, module: nn.Module, calls: list[Call], rules: tuple[Rule, ...], title: str
    ) -> None:
        self.module, self.rules, self.title = module, rules, title
        calls = [*calls, *(other for call in calls[:1] for other in at_other_sizes(module, call))]
        self.calls, self.count = _recorded(module, calls), len(calls)

    def run(self, port: Port) -> tuple[Port, Generated, Proof]:
        dropped: list[Dropped] = []
        while True:
            made = generate(port.plans, self.title)
            proofs = tuple(self.proofs(port, made))
            failed = [p for p in proofs if not p.passed]
            if not failed:
                how = f"by itself, on {self.count} calls with random inputs and adversarial weights"
                return port, made, Proof(proofs, None, tuple(dropped), how)
            dropped += self.guilty(port, failed)
            without = frozenset(f"{d.class_name}:{d.rule}" for d in dropped)
            port = replan(port, self.rules, port.without | without)

    def proofs(self, port: Port, made: Generated) -> Iterator[ModuleProof]:
        """One proof for each rewritten class, and one of the whole if that is more."""
        done = set()
        for path, plan in port.where.items():
            if plan in made.classes and plan not in done and path in self.calls:
                done.add(plan)
                module = self.module.get_submodule(path)
                yield prove_module(path, module, plan, made.classes[plan], self.calls[path])
        if any(plan in made.classes for path, plan in port.where.items() if path):
            name = f"all of {type(self.module).__name__}"
            whole = prove_rewritten(
                "", name, self.module, self.installed(port, made), self.calls[""]
            )
            yield whole

    def installed(self, port: Port, made: Generated) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            new = copy.deepcopy(self.module)
            install_all(new, port.where, made)
            return new

        return make

    def guilty(self, port: Port, failed: list[ModuleProof]) -> Iterator[Dropped]:
        """Which rules of the failing classes are at fault, each tried alone."""
        for proof in failed:
            whole = proof.class_name.startswith("all of ")
            if whole and len(failed) > 1:
                continue  # a part of it failed: that is the reason
            plans = port.plans if whole else (port.where[proof.path],)
            pairs = sorted({(p.trace.module_class.__name__, s.rule.name) for p in plans
                            for s in p.sites})  # fmt: skip
            bad = [pair for pair in pairs if len(pairs) == 1 or not self.alone(port, pair, pairs)]
            code = "AP702" if proof.fp32 is None and proof.error is None else "AP701"
            yield from (Dropped(c, r, code, proof.figures()) for c, r in bad or pairs)

    def alone(self, port: Port, pair: tuple[str, str], pairs: list[tuple[str, str]]) -> bool:
        """Does everything pass with this rule only?"""
        others = frozenset(f"{c}:{r}" for c, r in pairs if (c, r) != pair)
        one = replan(port, self.rules, port.without | others)
        return all(p.passed for p in self.proofs(one, generate(one.plans, self.title)))


def _recorded(module: nn.Module, calls: list[Call]) -> dict[str, list[Call]]:
    """Arguments of every call of the module and its parts; one that fails ends the recording."""
    found: dict[str, list[Call]] = {}
    hooks = []
    for name, part in module.named_modules():

        def note(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            found.setdefault(name, []).append((args, dict(kwargs)))

        hooks.append(part.register_forward_pre_hook(note, with_kwargs=True))
    try:
        with torch.no_grad():
            for args, kwargs in calls:
                module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def plan_alone(
    module: nn.Module,
    trace: ModuleTrace,
    rules: Iterable[Rule],
    *,
    inputs: tuple[Input, ...],
) -> Port:
    """The plan of a traced module; costs are per token: per row of its first float input."""
    port = plan_trace(module, trace, rules)
    floats = [i.shape for i in inputs if i.kind == "float"]
    rows = 1
    for size in (floats[0] if floats else inputs[0].shape)[:-1]:
        rows *= size
    return replace(port, tokens=rows)
