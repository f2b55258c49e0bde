"""What no rule claimed, folded by class, kind of work and the function that does it."""

from __future__ import annotations

from collections import Counter, defaultdict

from neuron_autoport.report import schema as s
from neuron_autoport.report.cost import base_name, kind_of
from neuron_autoport.report.coverage import Coverage, Work, total_cost
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.ops import Op

_Key = tuple[str, str, str | None]


def leftovers(coverage: Coverage) -> list[s.Leftover]:
    """All leftovers that do any work, those with most FLOPs and bytes first."""
    groups: dict[_Key, list[Work]] = defaultdict(list)
    for w in coverage.work:
        kind = kind_of(w.op)
        if w.site is None and kind not in ("structure", "layout"):
            groups[_home(w).trace.module_class.__name__, kind, _function(w, kind)].append(w)
    rows = [_row(key, work, coverage) for key, work in groups.items()]
    if coverage.missing.bytes:
        rows.append(_untraced(coverage))
    rows.sort(key=lambda r: (-r.work.flops, -r.work.bytes, r.class_name, r.kind, r.function or ""))
    return rows


def _is_part(w: Work) -> bool:
    """Is the class a plain part (linear, or of torch) that says less than its caller?"""
    if w.caller is None:
        return False
    module = w.plan.trace.module_class.__module__
    return module.startswith("torch.") or linear_of(w.plan.trace) is not None


def _home(w: Work) -> ClassPlan:
    return w.caller if w.caller is not None and _is_part(w) else w.plan


def _function(w: Work, kind: str) -> str | None:
    """The helper that `forward` called for this op, where there is one."""
    if kind == "attention" or _is_part(w):
        return None
    named = [x.function for x in w.op.spans[1:] if not x.function.endswith(">")]  # no comprehension
    return named[0] if named else None


def _row(key: _Key, work: list[Work], coverage: Coverage) -> s.Leftover:
    class_name, kind, function = key
    cost = total_cost(work)
    names: Counter[str] = Counter()
    for w in work:
        names[base_name(w.op)] += w.calls
    return s.Leftover(
        class_name=class_name,
        kind=kind,
        operations=[n for n, _ in sorted(names.items(), key=lambda x: (-x[1], x[0]))],
        modules=sorted({w.name for w in work if _is_part(w) and w.name}),
        function=function,
        calls=_calls(work),
        work=s.Work(flops=round(cost.flops), bytes=round(cost.bytes)),
        flops_share=_share(cost.flops, coverage.total.flops),
        bytes_share=_share(cost.bytes, coverage.total.bytes),
    )


def _calls(work: list[Work]) -> int:
    """How often the class runs: each op counts once, so the one that runs most often tells."""
    runs: Counter[tuple[ClassPlan, Op, str]] = Counter()
    for w in work:
        runs[_home(w), w.op, w.name if _is_part(w) else ""] += w.calls
    most: dict[ClassPlan, int] = defaultdict(int)
    for (plan, _, _), count in runs.items():
        most[plan] = max(most[plan], count)
    return sum(most.values())


def _untraced(coverage: Coverage) -> s.Leftover:
    missing, total = coverage.missing, coverage.total
    owners = sorted({path.rpartition(".")[0] for path in coverage.unused})
    return s.Leftover(
        class_name="",
        kind="untraced",
        operations=[],
        modules=[],
        function=None,
        calls=len(owners),
        work=s.Work(flops=round(missing.flops), bytes=round(missing.bytes)),
        flops_share=_share(missing.flops, total.flops),
        bytes_share=_share(missing.bytes, total.bytes),
    )


def _share(part: float, whole: float) -> float:
    return round(100.0 * part / whole, 6) if whole else 0.0
