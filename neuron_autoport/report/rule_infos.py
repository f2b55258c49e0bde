"""The rules a report speaks of: where each came from, its sites, and how near one without any came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from neuron_autoport.port import Port
from neuron_autoport.report import schema as s
from neuron_autoport.rewrite.reasons import Refusal
from neuron_autoport.rules.builtin import is_builtin
from neuron_autoport.rules.match import NearMiss
from neuron_autoport.rules.matcher import find
from neuron_autoport.rules.roles import Roles
from neuron_autoport.rules.rule import Rule
from neuron_autoport.rules.sources import origin_of, replaces_builtin


def rule_infos(
    library: Iterable[Rule], port: Port, shown: Callable[[Refusal], s.RefusalInfo]
) -> Iterator[s.RuleInfo]:
    """Rules with sites or refusals, and all that are not built in, by name.

    Args:
        library: the rules `port` was planned with. shown: a refusal as reports have it.
    """
    spoken = {r.rule for plan in port.plans for r in plan.refusals}
    sites = Counter(site.rule.name for _, site in port.sites())
    known = {site.rule.name: site.rule for _, site in port.sites()}
    known |= {r.name: r for r in library}
    for name, rule in sorted(known.items()):
        silent = name not in spoken and not sites[name]
        if silent and is_builtin(rule):
            continue
        yield s.RuleInfo(
            name=name,
            file=str(rule.path),
            origin=origin_of(rule),
            replaces_builtin=replaces_builtin(rule),
            sites=sites[name],
            nearest=shown(nearest_miss(rule, port, known.values())) if silent else None,
        )


def nearest_miss(rule: Rule, port: Port, library: Iterable[Rule]) -> Refusal:
    """The attempt that got furthest, as a refusal; also one that plans do not speak of."""
    roles = Roles(library)
    best: NearMiss | None = None
    for plan in port.plans:
        miss = find(rule, plan.graph, roles).near_miss
        if miss is not None and (best is None or miss.done > best.done):
            best = miss
    if best is None:
        return Refusal("AP210", rule.name, "nothing of the pattern is there", None, "0")
    span = best.op.spans[0] if best.op is not None and best.op.spans else None
    return Refusal("AP210", rule.name, best.reason, span, f"{best.done} of {best.total}")
