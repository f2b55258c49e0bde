"""Counts and one-line summaries of a proved port, for logs."""

from __future__ import annotations

from collections import Counter

from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.port import Port
from neuron_autoport.rewrite.reasons import STATED
from neuron_autoport.rules.builtin import is_builtin
from neuron_autoport.rules.sources import origin_of


def count_sites(port: Port) -> tuple[Counter[str], int]:
    """Fused sites by rule, and how many more a rule matched or nearly matched but was refused.

    Every instance counts: 30 layers with one MLP each are 30 sites. What the target has no function for
    is no site that was missed.
    """
    fused: Counter[str] = Counter(site.rule.name for _, site in port.sites())
    refused = sum(r.code != STATED for plan in port.where.values() for r in plan.refusals)
    refused += sum(len(plan.without) for plan in port.where.values())
    return fused, refused


def total_line(proved: ProvedPort) -> str:
    """`fused N of M sites (rule n, ...)`: the line at start-up."""
    fused, refused = count_sites(proved.port)
    listed = ", ".join(f"{rule} {n}" for rule, n in sorted(fused.items()))
    proof = "proof read from the cache" if proved.from_cache else "proved now"
    total = sum(fused.values())
    return f"fused {total} of {total + refused} sites ({listed}); {proof}, {proved.seconds:.1f} s"


def own_rule_lines(proved: ProvedPort) -> list[str]:
    """One line for each rule in use that is not built in: its sites, its file, what brought it in."""
    sites = Counter(site.rule.name for _, site in proved.port.sites())
    rules = {site.rule.name: site.rule for _, site in proved.port.sites()}
    return [
        f"rule {name}: {sites[name]} sites, {rule.path} (from {origin_of(rule)})"
        for name, rule in sorted(rules.items())
        if not is_builtin(rule)
    ]


def refusal_lines(proved: ProvedPort) -> list[str]:
    """One line per refusal and per rule that failed its proof, and one if only classes were proved."""
    lines = []
    if proved.proof.logits is None:
        lines.append(f"proved {proved.proof.how}; the logits were not compared")
    for plan in proved.port.plans:
        name = plan.trace.module_class.__name__
        for r in plan.refusals:
            if r.code == STATED:
                continue
            where = f" at {r.span.short()}" if r.span else ""
            lines.append(f"{name}: {r.rule} refused, {r.code} {r.message} ({r.steps}){where}")
    for d in proved.proof.dropped:
        lines.append(f"{d.class_name}: {d.rule} dropped, {d.code}: {d.figures}")
    return lines
