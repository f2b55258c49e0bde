"""The way of one module of the user's own to a proved port: built, run, traced, planned, proved."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from neuron_autoport.models.own_module import OwnModule, signature_of
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.port import Port, replan
from neuron_autoport.prove.model import Dropped, Proof
from neuron_autoport.prove.modules import ModuleProof, run
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rules.rule import Rule
from neuron_autoport.single import (
    for_real,
    on_meta,
    plan_alone,
    prove_alone,
    random_calls,
    trace_alone,
)

# Larger modules are not proved: originals and copies are made in three precisions.
SIZE_LIMIT = 150_000_000


def port_own(own: OwnModule, rules: Iterable[Rule], *, command: str = "") -> ProvedPort:
    """Plan one module and prove the plan; what fails its proof is left out and named.

    Args:
        rules: the library.
        command: that brought the user here, for errors.

    Raises:
        ModelError: the module cannot be made, or does not take these inputs.
    """
    started = time.perf_counter()
    rules = tuple(rules)
    size = sum(p.numel() for p in _made(own, command).parameters())
    module = _running(own, command) if size <= SIZE_LIMIT else None
    built = time.perf_counter()
    meta, trace = trace_alone(own.new, own.inputs, own.dtype)
    traced = time.perf_counter()
    port = plan_alone(meta, trace, rules, inputs=own.inputs)
    planned = time.perf_counter()
    seconds = {"build": built - started, "trace": traced - built, "plan": planned - traced}
    port = replace(port, seconds=seconds)
    if module is None:
        return _unproved(port, rules, f"{size:,} parameters are too many to prove here", planned)
    title = f"{type(module).__name__} of {own.path.name}"
    port, made, proof = prove_alone(port, module, random_calls(own.inputs), rules, title)
    return ProvedPort(port, made, proof, time.perf_counter() - planned, False)


def check_runs(own: OwnModule, command: str) -> None:
    """Raise what is to be said if the module cannot be made, or does not take its inputs.

    Raises:
        ModelError: with the place in the user's file.
    """
    _made(own, command)
    _running(own, command)


def _made(own: OwnModule, command: str) -> nn.Module:
    """An instance without data; its code may raise anything."""
    try:
        return on_meta(own.new, own.dtype)
    except (Exception, SystemExit) as error:
        doing = f"{own.called}{signature_of(own.made_by)} cannot be made"
        step = f"""give its arguments: {command} --init '{{"NAME": VALUE}}'"""
        raise own.failed(error, doing, step) from error


def _running(own: OwnModule, command: str) -> nn.Module:
    """An instance with weights that has run on the inputs."""
    try:
        module = for_real(own.new)
    except (Exception, SystemExit) as error:
        raise own.failed(error, f"{own.called} cannot be made", "make it run first") from error
    name = f"{type(module).__name__}.forward{signature_of(type(module).forward)}"
    try:
        run(module, random_calls(own.inputs, 1)[0])
    except (Exception, SystemExit) as error:
        given = ", ".join(str(i) for i in own.inputs)
        step = f"give the sizes it takes: {command}"
        raise own.failed(error, f"{name} does not run on {given}", step) from error
    return module


def _unproved(port: Port, rules: tuple[Rule, ...], why: str, started: float) -> ProvedPort:
    """The plan without any site, as nothing could be proved; each is named."""
    dropped: list[Dropped] = []
    while any(plan.sites for plan in port.plans):
        pairs = {(p.trace.module_class.__name__, s.rule.name) for p in port.plans for s in p.sites}
        dropped += [Dropped(cls, rule, "AP702", why) for cls, rule in sorted(pairs)]
        port = replan(port, rules, port.without | {f"{cls}:{rule}" for cls, rule in pairs})
    names = dict.fromkeys(d.class_name for d in dropped)
    proofs = tuple(ModuleProof("", name, None, None, why) for name in names)
    proof = Proof(proofs, None, tuple(dropped), why)
    made = generate(port.plans, "nothing")
    return ProvedPort(port, made, proof, time.perf_counter() - started, False)
