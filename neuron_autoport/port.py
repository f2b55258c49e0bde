"""config → meta model → trace → match → plan: one value that says all that will be changed.

Nothing is proved or hosted here; `prove.py` and `hosts/` take this value further.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from neuron_autoport.errors import ModelError
from neuron_autoport.models.build import meta_model
from neuron_autoport.models.calling import call_of
from neuron_autoport.models.source import ModelSource
from neuron_autoport.rewrite.plan import ClassPlan, left_alone, plan_class
from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.roots import RulesByRoot
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.members import module_at
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.tracer import trace_model

# Sizes that no model's own dimensions are likely to equal, so a shape is not mistaken for another.
BATCH, TOKENS = 2, 7
# For code that works on whole windows of tokens, such as a compressor of 128 of them.
LONG_TOKENS = 263


@dataclass(frozen=True, eq=False)
class Port:
    """The plan of a whole model.

    model: the meta model it was read from. trace: of the model. plans: one per distinct traced class.
    where: for every module call, its dotted path and its class's plan. base: path of the base model.
    seconds: spent in building, tracing and planning. without: `Class:rule` pairs left out.
    tokens: it was traced with, over all sequences.
    """

    model: nn.Module
    trace: ModuleTrace
    plans: tuple[ClassPlan, ...]
    where: dict[str, ClassPlan]
    base: str
    seconds: dict[str, float]
    without: frozenset[str] = frozenset()
    tokens: int = BATCH * TOKENS

    def sites(self) -> Iterator[tuple[str, Site]]:
        """Every site with the dotted path of its module, one per instance."""
        for path, plan in self.where.items():
            for site in plan.sites:
                yield path, site


def example_inputs(tokens: int = TOKENS) -> dict[str, Any]:
    """What a causal language model is traced with: token ids on the meta device."""
    return {
        "input_ids": torch.zeros(BATCH, tokens, dtype=torch.long, device="meta"),
        "use_cache": False,
    }


def port_model(
    source: ModelSource | PretrainedConfig,
    rules: Iterable[Rule],
    *,
    without: frozenset[str] = frozenset(),
) -> Port:
    """Plan the port of a causal language model.

    Args:
        source: the model, or its configuration; not changed. rules: the rule library.
        without: `Class:rule` pairs not to use.

    Raises:
        ModelError: the configuration does not build.
    """
    rules = tuple(rules)
    models = _Models(source)
    started = time.perf_counter()
    model, trace = _trace(models)
    trace, tokens = _longer(model, trace)
    traced = time.perf_counter()
    port = replace(plan_trace(model, trace, rules, without=without), tokens=BATCH * tokens)
    planned = time.perf_counter()
    seconds = {
        "build": models.seconds,
        "trace": traced - started - models.seconds,
        "plan": planned - traced,
    }
    return replace(port, seconds=seconds)


# How a model is built, tried in turn until all of it is traced to its end: the attention interface as a leaf; all in
# one dtype, where weights that loading keeps in float32 do not run beside bfloat16 ones; and attention as
# written, where the model's own code wants the mask that is not made for a leaf.
_ATTEMPTS = ((TRACE_ATTENTION, False), (TRACE_ATTENTION, True), ("eager", False))


class _Models:
    """The meta models of one source, each built when an attempt first wants it. seconds: that building took."""

    def __init__(self, source: ModelSource | PretrainedConfig) -> None:
        self.source, self.seconds = source, 0.0
        self.built: dict[tuple[str, bool], nn.Module] = {}

    def of(self, attempt: tuple[str, bool]) -> nn.Module:
        if attempt not in self.built:
            started = time.perf_counter()
            self.built[attempt] = _build(self.source, *attempt)
            self.seconds += time.perf_counter() - started
        return self.built[attempt]


def _trace(models: _Models) -> tuple[nn.Module, ModuleTrace]:
    """The model as built for the attempt with the fewest ends, and its trace; values only if need be."""
    best: tuple[int, nn.Module, ModuleTrace] | None = None
    first = models.of(_ATTEMPTS[0])
    for with_values in (False, True):
        for attempt in _ATTEMPTS:
            if attempt[1] and not getattr(first, "_keep_in_fp32_modules_strict", None):
                continue
            model = models.of(attempt)
            args, kwargs = call_of(model, example_inputs())
            trace = trace_model(model, args, kwargs, with_values=with_values)
            ends = trace.ends
            if best is None or ends < best[0]:
                best = (ends, model, trace)
            if not ends:
                return model, trace
    assert best is not None
    return best[1:]


def _longer(model: nn.Module, trace: ModuleTrace) -> tuple[ModuleTrace, int]:
    """The trace of a long prompt instead, if more of the model runs in it; and the length of the prompt."""
    before = _idle(model, trace)
    if not before or trace.ends:
        return trace, TOKENS
    args, kwargs = call_of(model, example_inputs(LONG_TOKENS))
    again = trace_model(model, args, kwargs, with_values=trace.answers is not None)
    if again.ends or not _idle(model, again) < before:
        return trace, TOKENS
    return again, LONG_TOKENS


def _idle(model: nn.Module, trace: ModuleTrace) -> set[str]:
    """Modules with parameters of the model's own that did not run though what holds them did.

    Of what was traced once for several modules, the first is looked at.
    """
    idle, seen = set(), {id(trace)}
    rest: list[tuple[str, nn.Module, ModuleTrace]] = [("", model, trace)]
    while rest:
        prefix, holder, part = rest.pop()
        called = {call.path for call in part.children}
        for name, child in holder.named_children():  # each once, by its first name
            if name not in called and _may_run(child):
                idle.add(prefix + name)
        for call in part.children:
            module = None if id(call.trace) in seen else module_at(holder, call.path)
            if module is not None:
                seen.add(id(call.trace))
                rest.append((f"{prefix}{call.path}.", module, call.trace))
    return idle


def _may_run(module: nn.Module) -> bool:
    """Has it parameters of its own, and is it no class of torch's? Those are leaves, traced by nobody."""
    own = next(module.parameters(recurse=False), None) is not None
    return own and not type(module).__module__.startswith("torch.")


def base_path(model: nn.Module) -> str:
    """Path of the base model in a causal language model; empty if there is none."""
    prefix = getattr(model, "base_model_prefix", "")
    if prefix and isinstance(getattr(model, prefix, None), nn.Module):
        return str(prefix)
    # Some name a prefix that only a larger model has.
    return next(
        (n for n, child in model.named_children() if isinstance(child, PreTrainedModel)), ""
    )


def _build(
    source: ModelSource | PretrainedConfig, attention: str, one_dtype: bool = False
) -> nn.Module:
    """The meta model; with `TRACE_ATTENTION` the attention interface is one leaf.

    Built in bfloat16, which shows every cast: in float32 a cast to float32 would leave no node.
    """
    try:
        return meta_model(source, attn_implementation=attention, one_dtype=one_dtype)
    except ModelError:  # chooses its attention class by name: traced as written
        return meta_model(source, attn_implementation="eager", one_dtype=one_dtype)


def replan(port: Port, rules: Iterable[Rule], without: frozenset[str]) -> Port:
    """The same trace planned again without some `Class:rule` pairs."""
    again = plan_trace(port.model, port.trace, rules, without=without)
    return replace(again, seconds=port.seconds, tokens=port.tokens)


def plan_trace(
    model: nn.Module,
    trace: ModuleTrace,
    rules: Iterable[Rule],
    *,
    without: frozenset[str] = frozenset(),
) -> Port:
    """Plan every distinct class of a trace, and say which plan each module instance has."""
    library = RulesByRoot(rules)
    roles = Roles(library.rules, without)
    plans: dict[ModuleTrace, ClassPlan] = {}
    where: dict[str, ClassPlan] = {}

    def put(path: str, plan: ClassPlan) -> None:
        known = where.setdefault(path, plan)
        if known is not plan and known.new_source() != plan.new_source():
            where[path] = left_alone(known, "AP206", "this module is called in two different ways")

    @cache
    def inside(part: ModuleTrace) -> list[tuple[str, ClassPlan]]:
        return [("", plans[part]), *((f".{path}", plans[t]) for path, t in part.below)]

    def place(path: str, part: ModuleTrace) -> None:
        if part in plans:
            for more, plan in inside(part):
                put(path + more, plan)
            return
        plans[part] = plan_class(part, library, without=without, roles=roles)
        put(path, plans[part])
        prefix = f"{path}." if path else ""
        for child in part.children:
            place(prefix + child.path, child.trace)

    place("", trace)
    return Port(model, trace, tuple(plans.values()), where, base_path(model), {}, without)
