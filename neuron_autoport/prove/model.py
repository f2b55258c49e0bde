"""Prove a whole port: on a small model of the same kind, module by module and to the logits.

The small model is traced, matched and rewritten by the same rules. A site of the full model counts as
proved when the source text of its rewritten class is the text that passed here. A class whose text did not
appear in the small model is proved by itself, at its own sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource
from neuron_autoport.models.tiny import TinyConfigError, tiny_config
from neuron_autoport.port import BATCH, LONG_TOKENS, TOKENS, Port, port_model, replan
from neuron_autoport.prove.compare import Comparison, compare
from neuron_autoport.prove.modules import RUN_ERRORS, Call, ModuleProof, prove_module
from neuron_autoport.prove.own_size import prove_at_own_size
from neuron_autoport.rewrite.emit import Generated, generate
from neuron_autoport.rewrite.install import install_all
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rules.rule import Rule

# Others than those of the trace: what these have decided shows then. The last is for code that only a long prompt runs.
_ROWS, _TOKENS, _LONG = BATCH + 1, 13, LONG_TOKENS + 13


@dataclass(frozen=True)
class Dropped:
    """A rule not used in a class because its rewrite failed or could not be proved."""

    class_name: str
    rule: str
    code: str
    figures: str


@dataclass(frozen=True, eq=False)
class Proof:
    """What was shown, by class: figures of every rewritten module, of the logits, and what was dropped."""

    modules: tuple[ModuleProof, ...]
    logits: Comparison | None
    dropped: tuple[Dropped, ...]
    how: str

    @property
    def without(self) -> frozenset[str]:
        """`Class:rule` pairs that must not be used."""
        return frozenset(f"{d.class_name}:{d.rule}" for d in self.dropped)


class Prover:
    """Proves ports of one model: the small model once, then any plan of the full one.

    Args:
        source: the full model, or its configuration. rules: those the ports are planned with.
        without: `Class:rule` pairs they are planned without.
    """

    def __init__(
        self,
        source: ModelSource | PretrainedConfig,
        rules: Iterable[Rule],
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.tiny: _TinyProof | None = None
        try:
            self.tiny = _TinyProof(small_source(source), tuple(rules), without)
            self.tiny.prove()
        except TinyConfigError as error:
            self.how = f"class by class, at full size ({error.what})"
        else:
            self.how = "on a small model of the same kind, module by module and to the logits"

    def prove(self, port: Port) -> Proof:
        """Which sites of `port` hold; it must be planned again without those that do not."""
        return _cover(port, self.tiny, self.how)


class _TinyProof:
    """Proof on a small model; drops what fails and proves the rest again."""

    def __init__(
        self,
        source: ModelSource | PretrainedConfig,
        rules: tuple[Rule, ...],
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.source, self.rules, self.off = source, rules, without
        self.config = source.config if isinstance(source, ModelSource) else source
        self.model = real_model(source, dtype=torch.float32, attn_implementation="eager")
        _plain_experts(self.model)
        self.ids = _token_ids(self.config, _TOKENS)
        self.proofs: tuple[ModuleProof, ...] = ()
        self.dropped: list[Dropped] = []
        self.logits: Comparison | None = None
        self.texts: set[tuple[type, str]] = set()

    def prove(self) -> None:
        port = port_model(self.source, self.rules, without=self.off)
        if port.tokens > BATCH * TOKENS:  # there is code that only a long prompt runs
            self.ids = _token_ids(self.config, _LONG)
        calls = self.record()
        while True:
            without = self.off | {f"{d.class_name}:{d.rule}" for d in self.dropped}
            port = replan(port, self.rules, without) if self.dropped else port
            made = generate(port.plans, f"small {self.config.model_type}")
            self.proofs = tuple(self.prove_modules(port, made, calls))
            failed = [p for p in self.proofs if not p.passed]
            if failed:
                self.drop(failed, port, made, calls)
                continue
            self.logits = self.compare_logits(port, made)
            if not self.logits.passed and (sites := self.all_sites(port)):
                figures = (
                    f"logits: {self.logits.rewritten:.1e}, original {self.logits.original:.1e}"
                )
                self.dropped += [Dropped(c, r, "AP701", figures) for c, r in sites]
                continue
            self.texts = {(p.trace.module_class, p.new_source() or "") for p in made.classes}
            return

    def all_sites(self, port: Port) -> list[tuple[str, str]]:
        return sorted(
            {(p.trace.module_class.__name__, s.rule.name) for p in port.plans for s in p.sites}
        )

    def record(self) -> dict[str, list[Call]]:
        """Arguments of every module call in one run of the original."""
        calls: dict[str, list[Call]] = {}
        hooks = []
        for name, module in self.model.named_modules():

            def note(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                calls.setdefault(name, []).append((args, dict(kwargs)))

            hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
        try:
            with torch.no_grad():
                self.model(input_ids=self.ids, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return calls

    def prove_modules(
        self, port: Port, made: Generated, calls: dict[str, list[Call]]
    ) -> Iterable[ModuleProof]:
        done: set[ClassPlan] = set()
        for path, plan in port.where.items():
            if plan in made.classes and plan not in done and path in calls:
                done.add(plan)
                module = self.model.get_submodule(path)
                yield prove_module(path, module, plan, made.classes[plan], calls[path])

    def drop(
        self, failed: list[ModuleProof], port: Port, made: Generated, calls: dict[str, list[Call]]
    ) -> None:
        """Find which rule of a failing class is at fault, by trying each alone."""
        for proof in failed:
            plan = port.where[proof.path]
            names = [s.rule.name for s in plan.sites]
            guilty = names if len(names) == 1 else [
                n for n in names if not self.alone(port, proof, n, names, calls)
            ]  # fmt: skip
            for name in guilty or names:
                self.dropped.append(Dropped(proof.class_name, name, "AP701", proof.figures()))

    def alone(
        self,
        port: Port,
        proof: ModuleProof,
        rule: str,
        names: list[str],
        calls: dict[str, list[Call]],
    ) -> bool:
        """Does the class pass with this rule only?"""
        others = frozenset(f"{proof.class_name}:{n}" for n in names if n != rule)
        port = replan(port, self.rules, others | self.off)
        made = generate(port.plans, f"small {self.config.model_type}")
        plan = port.where[proof.path]
        module = self.model.get_submodule(proof.path)
        return prove_module(proof.path, module, plan, made.classes[plan], calls[proof.path]).passed

    def compare_logits(self, port: Port, made: Generated) -> Comparison:
        new = copy.deepcopy(self.model)
        install_all(new, port.where, made)
        original, rewritten = self.run(self.model), self.run(new)
        try:
            exact = self.run(copy.deepcopy(self.model).double())
        except RUN_ERRORS:  # code that is written for one dtype: the original itself is the truth
            exact = original
        if original.isfinite().all() and not exact.isfinite().all():
            exact = original  # the same: such as a mask filled with the least float64, then cast
        return compare(exact, original, rewritten, torch.float32)

    def run(self, model: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model(input_ids=self.ids, use_cache=False).logits
        return logits


def _plain_experts(model: nn.Module) -> None:
    """Experts by plain products: the grouped ones of some dtypes do not run in float64."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"


def small_source(source: ModelSource | PretrainedConfig) -> ModelSource | PretrainedConfig:
    """The small model that stands for `source`; may run its code if `source` may."""
    small = tiny_config(source)
    if not isinstance(source, ModelSource):
        return small
    return replace(source, config=small, text_config=small.get_text_config())


def _token_ids(config: Any, tokens: int) -> torch.Tensor:
    vocabulary = config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    low = min(3, vocabulary - 1)  # ids below are often special
    return torch.randint(low, vocabulary, (_ROWS, tokens), generator=generator)


def _cover(port: Port, tiny: _TinyProof | None, how: str) -> Proof:
    """Which sites of the full port the small proof covers; the rest is proved at its own size."""
    proofs = list(tiny.proofs) if tiny else []
    dropped = list(tiny.dropped) if tiny else []
    known = tiny.texts if tiny else set()
    gone = {f"{d.class_name}:{d.rule}" for d in dropped}
    made: Generated | None = None
    for path, plan in port.where.items():
        cls, new = plan.trace.module_class, plan.new_source()
        if new is None or (cls, new) in known:
            continue
        if any(f"{cls.__name__}:{s.rule.name}" in gone for s in plan.sites):
            continue  # planned again without the dropped rule, and judged then
        made = made or generate(port.plans, "the full model")
        proof = prove_at_own_size(port.model, path, plan, made)
        proofs.append(proof)
        known = known | {(cls, new)}
        if not proof.passed:
            code = "AP702" if proof.fp32 is None else "AP701"
            rules = [s.rule.name for s in plan.sites]
            dropped += [Dropped(cls.__name__, r, code, proof.figures()) for r in rules]
    return Proof(tuple(proofs), tiny.logits if tiny else None, tuple(dropped), how)
