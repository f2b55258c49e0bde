"""Which rules apply to one traced class, and how its source changes: match → plan.

Every rule is tried; a full match whose conditions hold and whose rewrite is safe becomes a site. Bigger
sites win over smaller ones they overlap. What did not become a site leaves a `Refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType

from neuron_autoport import kernels, nf
from neuron_autoport.rewrite.apply import apply_edits
from neuron_autoport.rewrite.decided import Decided
from neuron_autoport.rewrite.edit import edit_match
from neuron_autoport.rewrite.made_up import refuse_made_up
from neuron_autoport.rewrite.near import Near, tells, unsaid
from neuron_autoport.rewrite.reasons import STATED, Refusal, Refused
from neuron_autoport.rewrite.site import Site, describe, plan_weights
from neuron_autoport.rewrite.source import Edits, ForwardSource, NoSource, inside
from neuron_autoport.rules.conditions import broken
from neuron_autoport.rules.match import Match
from neuron_autoport.rules.matcher import find
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.roots import RulesByRoot
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.moe import is_experts
from neuron_autoport.trace.ops import Op, OpGraph
from neuron_autoport.trace.spans import Span

# Names under which rewritten source finds the functions it calls.
CALLED: dict[str, ModuleType] = {"NF": nf, "NK": kernels}


@dataclass(frozen=True, eq=False)
class ClassPlan:
    """The plan of one class in one configuration.

    leftovers: operations in no site. without: rules that matched but may not be used (failed proof).
    stated: operations left because the target has no function for them, and the rules that say so.
    """

    trace: ModuleTrace
    graph: OpGraph
    sites: tuple[Site, ...]
    edits: Edits
    source: ForwardSource | None
    refusals: tuple[Refusal, ...]
    leftovers: tuple[Op, ...]
    without: tuple[str, ...] = ()
    stated: dict[Op, frozenset[str]] = field(default_factory=dict)

    def new_source(self) -> str | None:
        """The rewritten function, or None if nothing changes."""
        return self._new_source

    @cached_property
    def _new_source(self) -> str | None:
        if not self.sites or self.source is None:
            return None
        return apply_edits(self.source, self.edits)


def left_alone(plan: ClassPlan, code: str, message: str) -> ClassPlan:
    """The plan without its sites, each refused for this reason."""
    refused = tuple(Refusal(code, s.rule.name, message, s.span, "all") for s in plan.sites)
    return replace(plan, sites=(), edits=Edits(), refusals=(*plan.refusals, *refused))


@dataclass(frozen=True, eq=False)
class _Candidate:
    rule: Rule
    match: Match


def plan_class(
    trace: ModuleTrace,
    rules: Iterable[Rule] | RulesByRoot,
    *,
    without: frozenset[str] = frozenset(),
    roles: Roles | None = None,
) -> ClassPlan:
    """Plan one class.

    Args:
        trace: of the class. rules: the library.
        without: `Class:rule` pairs that may not be used (a proof failed).
        roles: what child modules are; made from `rules` if it is not given.
    """
    library = rules if isinstance(rules, RulesByRoot) else RulesByRoot(rules)
    roles = Roles(library.rules, without) if roles is None else roles
    graph = canonical_graph(trace)
    refusals: list[Refusal] = []
    candidates: list[_Candidate] = []
    near: list[Near] = []
    barred: list[str] = []
    said: set[Op] = set()  # of these it is known what becomes of them, or why nothing does
    for rule in library.worth_trying(graph):
        found = find(rule, graph, roles)
        said.update(op for match in found.matches for op in match.interior)
        if f"{trace.module_class.__name__}:{rule.name}" in without:
            barred += [rule.name] * len(found.matches)
            continue
        candidates += [_Candidate(rule, m) for m in found.matches]
        if found.near_miss is not None and tells(rule, found.near_miss):
            near.append(Near(rule, found.near_miss))
    if candidates and is_experts(trace):
        candidates = []  # a host's mixture-of-experts layer takes them whole, or they stay whole
    if trace.end is not None:  # what comes after the end may read anything: no match is safe
        message = f"the forward was not traced to its end: {trace.end.message}"
        refusals += [
            Refusal(trace.end.code, c.rule.name, message, _span_of(c.rule, c.match), "all")
            for c in candidates
        ]
        candidates = []
    # The larger first; before them those with linear maps, which others may quote in their inputs.
    candidates.sort(key=lambda c: (not _has_linear(c), -len(c.match.interior), c.rule.name))
    refusing = [c for c in candidates if c.rule.refuse]
    candidates = [c for c in candidates if not c.rule.refuse]
    chosen = _choose(trace, graph, candidates, refusals) if candidates else _Chosen()
    claimed = {op for site in chosen.sites for op in site.match.interior}
    stated = _state(refusing, claimed, refusals)
    named = {site.rule.role for site in chosen.sites}
    placed = {(site.rule.role, site.span) for site in chosen.sites}
    kept = [
        r
        for r in refusals
        if not (r.code == "AP301" and (library.role_of[r.rule], r.span) in placed)
    ]
    near = [n for n in near if not n.covered(claimed, graph, named)]
    said.update(op for n in near for op in n.miss.passed)
    near += unsaid(library, graph, roles, said)
    kept += [n.refusal for n in near]
    left = tuple(op for op in graph.ops if op not in claimed and op.name not in ("input", "param"))
    return ClassPlan(
        trace,
        graph,
        chosen.sites,
        chosen.edits,
        chosen.source,
        tuple(kept),
        left,
        tuple(barred),
        stated,
    )


def _has_linear(candidate: _Candidate) -> bool:
    return "linear" in candidate.rule.kinds.values()


def _state(
    refusing: list[_Candidate], claimed: set[Op], refusals: list[Refusal]
) -> dict[Op, frozenset[str]]:
    """Say of each match of a rule that refuses why it stays; what a site claimed does not.

    Returns the operations that stay for such a reason, each with the rule.
    """
    stated: dict[Op, frozenset[str]] = {}
    for candidate in refusing:
        rule, match = candidate.rule, candidate.match
        known = not claimed.isdisjoint(match.interior) or not stated.keys().isdisjoint(
            match.interior
        )
        if known or broken(rule.require, match) is not None:
            continue
        stated |= dict.fromkeys(match.interior, frozenset({rule.name}))
        refusals.append(Refusal(STATED, rule.name, rule.refuse, _span_of(rule, match), "all"))
    return stated


@dataclass
class _Chosen:
    sites: tuple[Site, ...] = ()
    edits: Edits = field(default_factory=Edits)
    source: ForwardSource | None = None


def _choose(
    trace: ModuleTrace,
    graph: OpGraph,
    candidates: list[_Candidate],
    refusals: list[Refusal],
) -> _Chosen:
    try:
        source = ForwardSource.of(trace.forward, trace.module_class, trace.reads)
    except NoSource as error:
        refusals += [Refusal("AP208", c.rule.name, str(error), None, "all") for c in candidates]
        return _Chosen()
    chosen = _Chosen(source=source)
    taken_ops: set[Op] = set()
    decided = Decided(source, trace)
    names = set(trace.reads) | set(dir(trace.module_class))
    for candidate in candidates:
        rule, match = candidate.rule, candidate.match
        if taken_ops & set(match.interior):
            continue
        try:
            _check_forward(trace)
            refuse_made_up(trace, match)
            unmet = broken(rule.require, match)
            if unmet is None and rule.check is not None:
                unmet = rule.check(match)
            if unmet is not None:
                raise Refused("AP301", unmet)
            decided.check(match.interior)
            _check_hooks(match)
            weights = plan_weights(rule, match, names)
            edits = edit_match(rule, match, weights, graph, source, chosen.edits)
            _check_apart(source, chosen.edits, edits)
        except Refused as no:
            span = no.span or _span_of(rule, match)
            refusals.append(Refusal(no.code, rule.name, no.message, span, "all"))
            continue
        taken_ops |= set(match.interior)
        names |= {f"{w.attr}_{k}" for w in weights for k in ("weight", "bias", "sizes", "heads")}
        span = _span_of(rule, match)
        assert span is not None
        site = Site(rule, match, span, weights, describe(match))
        chosen = _Chosen((*chosen.sites, site), chosen.edits.merged(edits), source)
    return chosen


def _check_apart(source: ForwardSource, chosen: Edits, edits: Edits) -> None:
    """Refuse an expression that holds, or lies in, one that another rule replaces."""
    for one in edits.replaced:
        for other in chosen.replaced:
            inner, outer = source.range(one), source.range(other)
            if any(inside(outer, source.range(q)) for q in edits.quoted):
                continue  # the new text quotes the expression as it was changed
            if inside(inner, outer) or inside(outer, inner):
                raise Refused("AP202", "another rule replaces a part of this expression")
    for replaced, unwrapped in (
        (edits.replaced, chosen.unwrapped),
        (chosen.replaced, edits.unwrapped),
    ):
        for whole, part in unwrapped.items():
            for place in map(source.range, replaced):
                crosses = inside(place, source.range(whole)) and not inside(
                    place, source.range(part)
                )
                if crosses or inside(source.range(whole), place):
                    raise Refused("AP202", "another rule replaces a part of this expression")


def _check_forward(trace: ModuleTrace) -> None:
    if "<locals>" in trace.module_class.__qualname__:
        raise Refused("AP208", "the class is defined inside a function and cannot be imported")
    code = trace.forward.__code__
    if code.co_freevars:
        raise Refused("AP208", f"forward closes over {', '.join(code.co_freevars)}")
    own = {n for n in CALLED if n in (*code.co_varnames, *code.co_cellvars)}
    space = trace.forward.__globals__
    own |= {
        n for n, ours in CALLED.items() if n in code.co_names and space.get(n, ours) is not ours
    }
    if own:  # the new calls would find these under their names
        raise Refused("AP208", f"forward has a meaning of its own for {', '.join(sorted(own))}")


def _check_hooks(match: Match) -> None:
    for op in match.interior:
        if op.hooked:
            message = (
                f"{op.target} has forward hooks, or a module in it has: they would run no more"
            )
            raise Refused("AP203", message, op.spans[0] if op.spans else None)


def _span_of(rule: Rule, match: Match) -> Span | None:
    op = match.values[rule.outputs[0]]
    return op.spans[0] if op.spans else None
