"""What share of the matrix products of a model's layers runs in fused functions.

Layers: all of the model but its embeddings and its LM head. A product is fused if it is in a site (also where
a limit of the target sends it to torch there: the site says which limit), or if a rule matched it
and says that the target has no function for it (AP402).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from neuron_autoport.port import Port
from neuron_autoport.report.cost import PRODUCTS, base_name, kind_of
from neuron_autoport.report.coverage import Work, measure
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rules.library import load_rules

# Decoder-only types without experts whose layers all have softmax attention: 68 of the 134.
DENSE = frozenset(Path(__file__).with_name("dense_types.txt").read_text(encoding="utf-8").split())

# The rule for what no other takes.
LONE = "lone_linear"
_SHOWN = ("attention", "norm", "softmax", "embedding")


@dataclass(frozen=True)
class Shares:
    """Shares from 0 to 1, per token of a decode step at a context of 1024 (`report/cost.py`).

    flops, bytes: of the whole model in sites. layer_flops: of its layers' products in sites or refused for
    a limit of the target. uncovered: the products that are not, `class.operation`, with their share.
    """

    flops: float
    bytes: float
    layer_flops: float
    uncovered: dict[str, float]


def shares(port: Port) -> Shares:
    """The shares of one planned model."""
    coverage = measure(port)
    root = next(plan for plan in port.plans if plan.trace is port.trace)
    products = [
        w for w in coverage.work if kind_of(w.op) in PRODUCTS and not _in_head(w, root, port)
    ]
    # What was not traced is counted by its weights, and is fused nowhere.
    missing = coverage.missing.flops
    total = sum(w.cost.flops * w.calls for w in products) + missing
    lost: dict[str, float] = {"not traced": missing} if missing else {}
    for work in products:
        if work.site is None and not _limited(work):
            label = _label(work)
            lost[label] = lost.get(label, 0.0) + work.cost.flops * work.calls
    whole = coverage.total
    return Shares(
        _share(coverage.fused.flops, whole.flops),
        _share(coverage.fused.bytes, whole.bytes),
        1.0 - _share(sum(lost.values()), total),
        {name: round(_share(f, total), 4) for name, f in sorted(lost.items(), key=lambda x: -x[1])},
    )


def kept_work(port: Port) -> dict[str, int]:
    """Calls of products, norms and attention that are in no site, by operation."""
    calls: Counter[str] = Counter()
    for work in measure(port).work:
        kind = kind_of(work.op)
        if work.site is None and (kind in PRODUCTS or kind in _SHOWN):
            calls[base_name(work.op)] += work.calls
    return dict(calls.most_common())


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _in_head(work: Work, root: ClassPlan, port: Port) -> bool:
    """Is it done by the causal model itself or by a child of it that is not the base model?"""
    return work.plan is root or (work.caller is root and work.name != port.base)


def _limited(work: Work) -> bool:
    """Does a rule say that the target has no function for it, and is that the whole reason?

    A linear map that no function takes by itself might have been a part of one if another rule that matched in the
    same forward had not been refused for a reason of ours.
    """
    if work.stated - {LONE}:
        return True
    plans = [work.plan] + ([work.caller] if work.caller else [])
    with_linears = {rule.name for rule in load_rules() if "linear" in rule.kinds.values()}
    ours = any(
        r.rule in with_linears and r.steps == "all" and not r.code.startswith("AP4")
        for plan in plans
        for r in plan.refusals
    )
    return LONE in work.stated and not ours


def _label(work: Work) -> str:
    owner = (work.caller or work.plan).trace.module_class.__name__
    return f"{owner}.{work.name}" if work.name else f"{owner}:{work.op.name}"
