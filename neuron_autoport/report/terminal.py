"""The report as text: header, tree, what was refused, limits, leftovers, one summary line.

Colours are rich's business: it leaves them out when the output is no terminal or NO_COLOR is set.
Only `Report` is read, so the same text can be drawn from the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from neuron_autoport.report import schema as s
from neuron_autoport.report.numbers import count, fused_text, percent, seconds
from neuron_autoport.report.roofline.info import roofline_lines
from neuron_autoport.report.serving_text import serving_lines, serving_title
from neuron_autoport.report.tables import kernel_table, leftover_table, limit_table, proof_table
from neuron_autoport.report.tree import LIMIT_SIGN, module_tree
from neuron_autoport.rewrite.reasons import STATED

_MAX_LEFTOVERS = 12


def print_report(report: s.Report, console: Console) -> None:
    """The whole report; sections that have nothing to say are left out."""
    print_header(report, console)
    console.print()
    _print_trimmed(module_tree(report, console.width), console)
    sections = (
        ("Logits", _logits(report)),
        ("Not traced to the end", _ends(report)),
        ("Not as the configuration says", _warnings(report, console.width)),
        ("Refused (`autoport explain CODE` says more)", _refusals(report, console.width)),
        ("Rules of your own", _own_rules(report, console.width)),
        (_limit_title(report), limit_table(report)),
        (f"Our own kernels on {report.target.name}, tried in simulation", kernel_table(report)),
        (f"{STATED}: the target has no function for these, torch runs there", _stated(report)),
        ("Left to torch", leftover_table(report.leftovers, _MAX_LEFTOVERS)),
        ("Proof", _proof(report)),
        (_roofline_title(report), roofline_lines(report.roofline)),
        (serving_title(report.serving), serving_lines(report.serving)),
    )
    for title, parts in sections:
        shown = list(parts)
        if shown:
            console.print()
            console.print(Text(title, style="bold"))
        for part in shown:
            _print_trimmed(part, console)
    console.print()
    print_summary(report, console)


def _print_trimmed(part: RenderableType, console: Console) -> None:
    """Print without the spaces that rich fills lines up with."""
    with console.capture() as captured:
        console.print(part)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    console.file.write(text)


def print_header(report: s.Report, console: Console) -> None:
    """Two lines: the model, and how it was looked at."""
    model, versions = report.model, report.versions
    kind = f" ({model.model_type})" if model.model_type not in ("", model.name) else ""
    size = f"{count(model.parameters)} parameters"
    console.print(Text.assemble((model.name, "bold"), kind, " · ", model.architecture, " · ", size))
    read = f"traced in {model.dtype} with transformers {versions.transformers}"
    console.print(Text(f"{read}, {seconds(report.seconds)} s", style="dim"))


def print_proof(report: s.Report, console: Console) -> None:
    """The figures of the proof by themselves, if one was made."""
    for part in _proof(report):
        _print_trimmed(part, console)
    console.print()


def print_summary(report: s.Report, console: Console) -> None:
    """One line: sites and matrix products, share of FLOPs and of weight bytes.

    A site is where a rule matched or nearly did: all of them may be fused in a model that is mostly left to torch.
    """
    c = report.coverage
    line = Text.assemble(
        (fused_text(c), "bold"),
        f", {percent(c.flops.percent)} of FLOPs, {percent(c.weight_bytes.percent)} of weight bytes",
        (f"  (per token, context {c.context})", "dim"),
    )
    if not c.traced:
        line.append("; not all of the model was traced", style="red")
    console.print(line)


def _roofline_title(report: s.Report) -> str:
    roof = report.roofline
    if roof is None:
        return ""
    asked = f"batch {roof.batch}, context {roof.context}, tp {roof.tp}"
    return f"Roofline of a decode step on {roof.chip} ({asked})"


def _logits(report: s.Report) -> Iterator[RenderableType]:
    """What stands between head and logits, if anything does."""
    head = report.head
    if report.model.kind == "module":
        return
    if head.unknown is not None:
        if report.coverage.traced:  # else "Not traced to the end" says it
            yield _indented(Text(f"not understood: {head.unknown}", style="red"), 2)
        return
    said = []
    if head.scale not in (None, 1.0):
        said.append(f"scale={head.scale:g}")
    if head.soft_cap is not None:
        said.append(f"soft_cap={head.soft_cap:g}")
    if head.scale_after_cap not in (None, 1.0):
        said.append(f"scale after the cap={head.scale_after_cap:g}")
    if said:
        yield Text(f"  {head.module}: " + "  ".join(said))


def _ends(report: s.Report) -> Iterator[RenderableType]:
    for cls in report.classes:
        if cls.end is not None:
            line = Text.assemble((cls.end.code, "red"), f"  {cls.name}: {cls.end.message}")
            if cls.end.where:
                line.append(f"  {cls.end.where}", style="cyan")
            yield _indented(line, 2)


def _warnings(report: s.Report, width: int) -> Iterator[RenderableType]:
    """Each warning once, however many classes of the name have it."""
    found = {(c.name, w.model_dump_json()): w for c in report.classes for w in c.warnings}
    for (name, _), w in found.items():
        yield _indented(Text.assemble((w.code, "yellow"), f"  {name}: {w.message}"), 2)
        yield from _marked(w.place, width)


def _refusals(report: s.Report, width: int) -> Iterator[RenderableType]:
    """Each refusal once, however many plans of the class have it."""
    instances: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], tuple[str, s.RefusalInfo]] = {}
    for cls in report.classes:
        for r in cls.refusals:
            if r.code == STATED:
                continue
            key = (cls.name, r.model_dump_json())
            instances[key] = instances.get(key, 0) + len(cls.paths)
            first.setdefault(key, (cls.name, r))
    for key, (name, r) in first.items():
        yield from _refusal(r, name, instances[key], width)


def _stated(report: s.Report) -> Iterator[RenderableType]:
    """What rules say the target lacks: one line per class and rule, with the places."""
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for cls in report.classes:
        for r in cls.refusals:
            if r.code == STATED:
                lines = found.setdefault((cls.name, r.rule, r.message), {})
                lines[str(r.place.line) if r.place is not None else "?"] = None
    for (name, rule, message), lines in found.items():
        said = f"{name}:{','.join(lines)}  {message}"
        yield _indented(Text.assemble((rule, "bold"), f"  {said}"), 2)


def _refusal(
    r: s.RefusalInfo, class_name: str, instances: int, width: int
) -> Iterator[RenderableType]:
    steps = "all of the pattern matched" if r.steps == "all" else f"{r.steps} steps matched"
    times = f" ×{instances}" if instances > 1 else ""
    yield _indented(
        Text.assemble((r.code, "red"), "  ", (r.rule, "bold"), f" in {class_name}{times}"), 2
    )
    yield _indented(Text(r.message), 9)
    yield _indented(Text(f"{r.meaning}; {steps}", style="dim"), 9)
    yield from _marked(r.place, width)


def _own_rules(report: s.Report, width: int) -> Iterator[RenderableType]:
    """Where each rule of the user's comes from, and its sites or how near it came to one."""
    for rule in report.rules:
        if rule.origin == "built in":
            continue
        said = f"{rule.sites} site" + ("" if rule.sites == 1 else "s")
        instead = "; replaces the built-in rule" if rule.replaces_builtin else ""
        head = Text.assemble((rule.name, "bold"), f": {said}", (instead, "dim"))
        yield _indented(head, 2)
        yield _indented(Text.assemble((rule.file, "cyan"), (f"  from {rule.origin}", "dim")), 9)
        miss = rule.nearest
        if miss is not None:
            steps = f"{miss.steps} steps matched, then: " if miss.place is not None else ""
            yield _indented(Text.assemble((miss.code, "red"), f"  {steps}{miss.message}"), 4)
            yield from _marked(miss.place, width)


def _marked(place: s.Place | None, width: int) -> Iterator[RenderableType]:
    """A place, and its source line with carets below the expression."""
    if place is not None:
        yield _indented(Text(str(place), style="cyan"), 9)
        for line in caret_lines(place, width - 9):
            yield _indented(line, 9)


def caret_lines(place: s.Place, width: int) -> list[Text]:
    """The source line without indentation, carets below the expression; both cut to `width`."""
    text = place.source.replace("\t", " ")
    indent = len(text) - len(text.lstrip())
    text = text.rstrip()[indent:]
    start, end = place.column - 1 - indent, place.end_column - 1 - indent
    number = f"{place.line} │ "
    room = max(width - len(number), 20)
    if end > room:  # begin shortly before the expression
        cut = max(0, min(start - 8, len(text) - room + 1))
        text, start, end = "…" + text[cut:], start - cut + 1, end - cut + 1
    if len(text) > room:
        text = text[: room - 1] + "…"
    carets = " " * start + "^" * max(1, min(end, room) - start)
    margin = " " * (len(number) - 2) + "│ "
    return [
        Text.assemble((number, "dim"), text),
        Text.assemble((margin, "dim"), (carets, "red")),
    ]


def _limit_title(report: s.Report) -> str:
    target = report.target
    here = f"{target.name} that do not hold at tp {target.tp}"
    return f"{LIMIT_SIGN} AP401: limits of {here}, torch runs there"


def _proof(report: s.Report) -> Iterator[RenderableType]:
    proof = report.proof
    if proof is None or not (proof.classes or proof.dropped or proof.logits):
        return
    source = "read from the cache" if proof.from_cache else "made now"
    yield _indented(Text(f"{proof.how}; {source}", style="dim"), 2)
    yield proof_table(proof)
    for d in proof.dropped:
        line = Text.assemble(
            (d.code, "red"), "  ", (d.rule, "bold"), f" in {d.class_name} dropped: {d.figures}"
        )
        yield _indented(line, 2)


def _indented(text: Text, columns: int) -> Padding:
    return Padding(text, (0, 0, 0, columns))
