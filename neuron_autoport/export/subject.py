"""What is exported: a proved port as the Neuron host builds it, and how each of its classes is used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from neuron_autoport.errors import AutoportError
from neuron_autoport.export.record import Recorded, record_calls
from neuron_autoport.hosts.neuron.assembly import Ported, Without
from neuron_autoport.hosts.neuron.build import host_source, port_of
from neuron_autoport.hosts.neuron.errors import NeuronHostError
from neuron_autoport.hosts.neuron.facts import LayerFacts
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.selftest import Trial, refuse_state, self_test, small_source
from neuron_autoport.models.source import ModelSource
from neuron_autoport.nf.dispatch import reference
from neuron_autoport.pipeline import proved_port
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rules.rule import Rule

RANKS = 2  # the self-test tries sharing as well


class ExportError(AutoportError):
    """The model cannot be written out as source."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A proved port with all that is known of its classes.

    without: decode forms and sharing that the host's self-test ruled out. rules: the library it was made
    with. dropped: `Class:rule` pairs that failed their proof.
    """

    source: ModelSource
    ported: Ported
    without: Without
    recorded: Recorded
    rules: tuple[Rule, ...]
    dropped: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """Name of the base model in the whole one."""
        found: str = self.recorded.model.base_model_prefix
        return found

    @property
    def layers(self) -> list[LayerFacts]:
        return self.ported.layers

    def plans(self, module: type[nn.Module]) -> list[ClassPlan]:
        """The plans of a class that change its source; several where its layers differ."""
        generated = self.ported.generated.classes
        where = self.ported.port.where.values()
        plans = dict.fromkeys(p for p in where if p.trace.module_class is module)
        return [p for p in plans if p in generated]

    def plan(self, module: type[nn.Module]) -> ClassPlan | None:
        """The plan whose source a class gets; None if it stays as it is.

        Where layers take different branches, one of the plans has the rewrites of all.

        Raises:
            ExportError: its modules are rewritten in ways that no one source has.
        """
        plans = self.plans(module)
        if not plans:
            return None
        sites = {p: {(s.rule.name, s.span) for s in p.sites} for p in plans}
        most = max(plans, key=lambda p: len(sites[p]))
        if any(not sites[p] <= sites[most] or _weights(p) != _weights(most) for p in plans):
            raise ExportError(
                f"{module.__name__} is rewritten in different ways in one model; a package has one class",
                self.source.name,
                f"autoport inspect {self.source.name} --diff",
            )
        return most

    def replaced(self) -> set[str]:
        """Paths below the base model of modules that fused weights take the place of."""
        found = set()
        for path, plan in self.ported.port.where.items():
            if path.startswith(f"{self.prefix}.") and plan in self.ported.generated.classes:
                below = path.removeprefix(f"{self.prefix}.")
                found |= {f"{below}.{m}" for site in plan.sites for m in site.modules}
        return found


def _weights(plan: ClassPlan) -> set[tuple[str, tuple[str, ...], str]]:
    """The fused weights of a plan, whatever their sizes."""
    weights = [w for site in plan.sites for w in site.weights]
    return {(w.attr, tuple(p.module for p in w.parts), w.shard) for w in weights}


def subject(source: ModelSource, rules: Iterable[Rule], without: frozenset[str]) -> Subject:
    """Prove a port, try it as the host would run it, and record how its classes are called.

    Raises:
        NeuronHostError: the Neuron runner cannot drive the model; by name and reason.
    """
    library = tuple(rules)
    host_source(source.config, trust_remote_code=source.trust_remote_code)
    small = small_source(source)
    try:
        layers = read_layers(source)
    except NeuronHostError:
        refuse_state(source, small)
        raise
    with reference():
        proved = proved_port(source, library, without=without)
        ported = port_of(source, proved.port, layers)
        ruled_out = self_test(NeuronTransformersForCausalLM, ported, small, RANKS, rules=library)
    recorded = record_calls(source)
    if recorded.base is recorded.model:
        raise ExportError("the model and its head are one module", source.name)
    dropped = tuple(f"{d.class_name}:{d.rule}" for d in proved.proof.dropped)
    return Subject(source, ported, ruled_out, recorded, library, dropped)


def small_subject(of: Subject, trial: Trial) -> Subject:
    """The same export of the small model that a trial runs."""
    return replace(
        of,
        source=trial.ported.source,
        ported=trial.ported,
        recorded=record_calls(trial.ported.source),
    )


def remaining(subject: Subject) -> dict[type[nn.Module], list[Any]]:
    """Modules of the base model that stay, by class, in the order of their names."""
    gone = subject.replaced()
    found: dict[type[nn.Module], list[Any]] = {}
    for path, module in subject.recorded.base.named_modules():
        if not any(path == g or path.startswith(f"{g}.") for g in gone):
            found.setdefault(type(module), []).append(module)
    return found
