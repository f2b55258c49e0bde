"""`autoport inspect --html`: the report, the source of every class and its data flow on one page."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from neuron_autoport.port import Port
from neuron_autoport.report import schema as s
from neuron_autoport.report.numbers import count, percent, seconds, sizes
from neuron_autoport.report.page.code import ClassCode, class_code, refusal_key, site_key
from neuron_autoport.report.page.draw import draw
from neuron_autoport.report.page.flow import flow
from neuron_autoport.report.places import short_file
from neuron_autoport.report.tree import site_facts
from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.reasons import STATED


@dataclass(frozen=True)
class Section:
    """A class with something to tell: its report, its code, its sites' rules, pictures of its data flow."""

    info: s.ClassInfo
    code: ClassCode | None
    file: str
    rules: dict[str, str]
    before: Markup | None
    after: Markup | None
    proofs: tuple[s.ClassProof, ...]


def inspect_page(report: s.Report, port: Port, folder: Path | None = None) -> str:
    """The page as HTML text; the same report and port give the same bytes.

    Args:
        report: of `port`. folder: where the model's own code lies.
    """
    pairs = zip(port.plans, report.classes, strict=True)
    sections = [_section(p, c, report, folder) for p, c in pairs if _tells(c)]
    return page_environment().from_string(asset("inspect.html.j2")).render(
        r=report, sections=sections, style=Markup(asset("inspect.css")), stated=STATED,
        script=Markup(asset("inspect.js")), seconds=seconds(report.seconds), sizes=sizes,
        facts=site_facts, site_key=site_key, refusal_key=refusal_key, by_id=report.by_id(),
        shown={x.info.id for x in sections}, leftovers=report.leftovers,
    )  # fmt: skip


def page_environment() -> Environment:
    """jinja2 as pages use it: everything is escaped, and a name that is not there is an error."""
    made = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    made.filters |= {"count": count, "percent": percent}
    return made


def _tells(info: s.ClassInfo) -> bool:
    return bool(
        info.sites or info.refusals or info.dropped or info.end or info.moe or info.warnings
    )


def _section(
    plan: ClassPlan, info: s.ClassInfo, report: s.Report, folder: Path | None
) -> Section:  # fmt: skip
    code = class_code(plan)
    proofs = report.proof.classes if report.proof is not None else []
    name = info.name
    return Section(
        info=info,
        code=code,
        file=short_file(code.file, folder) if code is not None else "",
        rules={s.rule.name: s.rule.text.partition("\nexamples:")[0].strip() for s in plan.sites},
        before=_picture(plan, False, f"data flow of {name} as written"),
        after=_picture(plan, True, f"data flow of {name}, rewritten") if plan.sites else None,
        proofs=tuple(p for p in proofs if p.class_name == name and p.path in info.paths),
    )


def _picture(plan: ClassPlan, fused: bool, title: str) -> Markup | None:
    graph = flow(plan, fused)
    return draw(graph, title) if graph is not None else None


def asset(name: str) -> str:
    """A file that lies beside this one: the style is shared by all pages."""
    return files("neuron_autoport.report.page").joinpath(name).read_text(encoding="utf-8")
