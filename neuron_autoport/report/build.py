"""From a planned (and perhaps proved) port to the report: pure data, nothing of torch in it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

import torch
import transformers

import neuron_autoport
from neuron_autoport.fused import FusedWeight
from neuron_autoport.kernels.calls import KernelCall, kernel_calls
from neuron_autoport.models.own_module import OwnModule
from neuron_autoport.models.plain import stops_serving
from neuron_autoport.models.source import ModelSource
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.port import Port
from neuron_autoport.report import schema as s
from neuron_autoport.report.cost import REFERENCE_CONTEXT, Cost
from neuron_autoport.report.coverage import Coverage, measure
from neuron_autoport.report.fold import Folded, fold
from neuron_autoport.report.leftovers import leftovers
from neuron_autoport.report.limits import broken_limits
from neuron_autoport.report.moe import moe_info
from neuron_autoport.report.places import caret_range, short_file, source_line
from neuron_autoport.report.results import head_info, proof_info, unknown_head
from neuron_autoport.report.roofline.info import roofline_info
from neuron_autoport.report.roofline.model import Step
from neuron_autoport.report.rotary import rotary_warnings, told_widths
from neuron_autoport.report.rule_infos import rule_infos
from neuron_autoport.report.summary import count_sites
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.reasons import CODES, Refusal
from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.match import ModuleRef
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.facts import linear_of
from neuron_autoport.trace.spans import Span


def build_report(
    source: ModelSource | OwnModule,
    port: Port,
    target: s.Target,
    *,
    library: Iterable[Rule] = (),
    proved: ProvedPort | None = None,
    seconds: dict[str, float] | None = None,
    step: Step | None = None,
) -> s.Report:
    """Everything `inspect` says about one model.

    Args:
        source: the model, or module, as the user named it. port: its plan.
        target: what limits are judged for; limits of `cpu` are none.
        library: the rules it was planned with; those of the user's own are all listed.
        proved: the proof, if one was made. seconds: added to those of the port.
        step: what a roofline of `target` is drawn for, if at all.
    """
    report = _Builder(source, port, target, library).report(proved, seconds or {})
    if step is None or target.name == "cpu":
        return report
    return report.model_copy(update={"roofline": roofline_info(port, target.name, step)})


class _Builder:
    def __init__(
        self,
        source: ModelSource | OwnModule,
        port: Port,
        target: s.Target,
        library: Iterable[Rule],
    ) -> None:
        self.source, self.port, self.target = source, port, target
        self.library = tuple(library)
        self.coverage = measure(port)
        self.rotated = told_widths(getattr(port.model, "config", None))
        self.ids = _class_ids(port.plans)
        self.paths: dict[ClassPlan, list[str]] = {}
        for path, plan in port.where.items():
            self.paths.setdefault(plan, []).append(path)

    def report(self, proved: ProvedPort | None, seconds: dict[str, float]) -> s.Report:
        return s.Report(
            model=self.model(),
            versions=s.Versions(
                autoport=neuron_autoport.__version__,
                transformers=transformers.__version__,
                torch=torch.__version__,
            ),
            target=self.target,
            classes=[self.class_info(plan) for plan in self.port.plans],
            rules=list(rule_infos(self.library, self.port, self.refusal)),
            tree=self.node(fold(self.port)),
            leftovers=leftovers(self.coverage),
            coverage=self.shares(),
            head=self.head(),
            proof=proof_info(proved) if proved is not None else None,
            seconds={k: round(v, 3) for k, v in {**self.port.seconds, **seconds}.items()},
        )

    def model(self) -> s.ModelInfo:
        if isinstance(self.source, OwnModule):
            kind, dtype, stopped = "", str(self.source.dtype), None
        else:
            kind, stopped = self.source.config.model_type, stops_serving(self.source)
            first = next(self.port.model.parameters(), None)  # of a model without a base class
            own = first.dtype if first is not None else "?"
            dtype = str(getattr(self.port.model, "dtype", own))
        return s.ModelInfo(
            name=self.source.name,
            kind=self.source.kind,
            model_type=kind,
            architecture=type(self.port.model).__name__,
            parameters=self.coverage.parameters,
            dtype=dtype.removeprefix("torch."),
            unserved=stopped,
        )

    def head(self) -> s.HeadInfo:
        if isinstance(self.source, OwnModule):
            return unknown_head("a module by itself has no logits")
        return head_info(self.port.trace)

    def class_info(self, plan: ClassPlan) -> s.ClassInfo:
        trace = plan.trace
        facts, end = linear_of(trace), trace.end
        return s.ClassInfo(
            id=self.ids[plan],
            name=trace.module_class.__name__,
            module=trace.module_class.__module__,
            linear=f"{facts.in_features}→{facts.out_features}" if facts else None,
            paths=self.paths.get(plan, []),
            sites=[self.site(x) for x in plan.sites],
            refusals=[self.refusal(r) for r in plan.refusals],
            dropped=sorted(set(plan.without)),
            end=s.TraceEndInfo(code=end.code, message=end.message, where=self.where(end.where))
            if end
            else None,
            moe=moe_info(trace, self.target.tp, self.place),
            warnings=list(rotary_warnings(plan.graph, self.rotated, self.place)),
        )

    def site(self, site: Site) -> s.SiteInfo:
        on_neuron = self.target.name != "cpu"
        calls = kernel_calls(site) if on_neuron else ()
        return s.SiteInfo(
            rule=site.rule.name,
            role=site.rule.role,
            call=call_name(site.rule),
            place=self.place(site.span),
            modules=sorted(site.modules),
            found=_found(site),
            weights=[_weight(w) for w in _in_order(site)],
            limits=[*self.limits(site), *_own_limits(calls)] if on_neuron else [],
            kernels=[_kernel(call) for call in calls],
            work=work(self.coverage.of_site(site)),
            weight_bytes=self.coverage.claimed.get(site, 0),
        )

    def limits(self, site: Site) -> list[s.Limit]:
        return [
            s.Limit(text=b.text, figures=b.figures, holds_from_tp=b.holds_from)
            for b in broken_limits(site, self.target.tp, self.target.name)
        ]

    def refusal(self, refusal: Refusal) -> s.RefusalInfo:
        return s.RefusalInfo(
            code=refusal.code,
            meaning=CODES.get(refusal.code, ""),
            rule=refusal.rule,
            message=refusal.message,
            steps=refusal.steps,
            place=self.place(refusal.span) if refusal.span is not None else None,
        )

    def place(self, span: Span) -> s.Place:
        start, end = caret_range(span)
        return s.Place(
            file=short_file(span.file, self.source.folder),
            line=span.line,
            column=start + 1,
            end_column=end + 1,
            source=source_line(span.file, span.line),
        )

    def where(self, where: str | None) -> str | None:
        file, _, line = (where or "").rpartition(":")
        return f"{short_file(file, self.source.folder)}:{line}" if file else None

    def node(self, folded: Folded) -> s.Node:
        return s.Node(
            name=folded.name,
            paths=list(folded.paths),
            class_id=self.ids[folded.plan],
            inside=folded.inside,
            children=[self.node(child) for child in folded.children],
        )

    def shares(self) -> s.Coverage:
        fused, refused = count_sites(self.port)
        sites = sum(fused.values())
        coverage: Coverage = self.coverage
        return s.Coverage(
            context=REFERENCE_CONTEXT,
            sites=share(sites, sites + refused),
            flops=share(coverage.fused.flops, coverage.total.flops),
            bytes=share(coverage.fused.bytes, coverage.total.bytes),
            weight_bytes=share(sum(coverage.claimed.values()), coverage.weight_bytes),
            traced=coverage.whole,
            products=share(coverage.products(in_sites=True), coverage.products()),
        )


def _own_limits(calls: Iterable[KernelCall]) -> list[s.Limit]:
    """Limits of our own kernels that do not hold: ranks change nothing there."""
    return [
        s.Limit(text=str(b.limit), figures=b.value, holds_from_tp=None)
        for call in calls
        for b in call.broken
    ]


def _kernel(call: KernelCall) -> s.KernelInfo:
    kernel = call.kernel
    limits = [str(limit) for limit in kernel.limits]
    return s.KernelInfo(name=kernel.title, limits=limits, evidence=kernel.evidence, runs=call.runs)


def work(cost: Cost) -> s.Work:
    return s.Work(flops=round(cost.flops), bytes=round(cost.bytes))


def share(part: float, whole: float) -> s.Share:
    percent = round(100.0 * part / whole, 2) if whole else 0.0
    return s.Share(part=round(part), whole=round(whole), percent=percent)


def call_name(rule: Rule) -> str:
    """The function a rule calls, e.g. `NF.mlp`; of several, the outermost."""
    for node in ast.walk(rule.replace.value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            space = node.func.value
            if isinstance(space, ast.Name) and space.id in ("NF", "NK"):
                return f"{space.id}.{node.func.attr}"
    return ast.unparse(rule.replace.value)


def _class_ids(plans: Iterable[ClassPlan]) -> dict[ClassPlan, str]:
    """`LlamaMLP`, and `LlamaMLP-2` for another plan of a class of the same name."""
    seen: Counter[str] = Counter()
    ids = {}
    for plan in plans:
        name = plan.trace.module_class.__name__
        seen[name] += 1
        ids[plan] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    return ids


def _found(site: Site) -> dict[str, str]:
    """What was found, without the captured modules: those are in `weights`."""
    modules = {n for n, v in site.match.values.items() if isinstance(v, ModuleRef)}
    return {n: text for n, text in site.found.items() if n not in modules}


def _in_order(site: Site) -> list[FusedWeight]:
    """The weights as the rule's replacement names them: gate and up before down."""
    nodes = [n for n in ast.walk(site.rule.replace.value) if isinstance(n, ast.Name)]
    nodes.sort(key=lambda n: (n.lineno, n.col_offset))
    names = [n.id for n in nodes]
    return sorted(
        site.weights, key=lambda w: names.index(w.name) if w.name in names else len(names)
    )


def _weight(weight: FusedWeight) -> s.Weight:
    return s.Weight(
        name=weight.name,
        attribute=weight.attr,
        in_features=weight.in_features,
        out_features=weight.out_features,
        sizes=list(weight.sizes),
        shard=weight.shard,
        head_dim=weight.head_dim,
        parts=[
            s.WeightPart(
                module=p.module,
                weight=p.weight,
                bias=p.bias,
                layout=p.layout,
                start=p.start,
                end=p.end,
            )
            for p in weight.parts
        ],
    )
