"""The report of `autoport validate` on a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuron_autoport.accuracy.explain import ranges
from neuron_autoport.accuracy.schema import (
    Failure,
    Level1,
    Level2,
    Level3,
    ModuleResult,
    Report,
)
from neuron_autoport.accuracy.three_way import Verdict

SHORT = {
    Verdict.same: "equal", Verdict.rounding: "rounding", Verdict.warn: "R > 1.2",
    Verdict.failed: "failed",
}  # fmt: skip


def print_report(report: Report, console: Console) -> None:
    """Print all levels, the failures and what is not shown."""
    settings = report.settings
    console.print(
        f"[bold]{settings.architecture}[/bold]  {settings.model}  {settings.dtype}  "
        f"{settings.impl}" + ("  layer by layer" if settings.layered else "")
    )
    sites = ", ".join(f"{name} {count}" for name, count in sorted(report.sites.items()))
    console.print(f"rewritten sites: {sites or 'none'}", style="dim")
    if settings.without:
        console.print(f"switched off: {', '.join(settings.without)}", style="dim")
    if report.level3 is not None:
        _print_level3(report.level3, console)
    for level2 in report.level2:
        _print_level2(level2, console)
    if report.level1 is not None:
        _print_level1(report.level1, console)
    for failure in report.failures:
        _print_failure(failure, console)
    console.print("\nNot shown by this:", style="bold")
    for note in report.not_shown:
        console.print(f"  - {note}", soft_wrap=True)
    console.print(
        Text.assemble("\n", verdict(report.passed, long=True), f"  in {report.seconds:.0f} s")
    )


def verdict(passed: bool, *, long: bool = False) -> Text:
    word = ("all levels passed" if long else "passed") if passed else "FAILED"
    return Text(word, style="bold green" if passed else "bold red")


def _print_level3(level: Level3, console: Console) -> None:
    head = f"\nLevel 3, modules: {level.rows} × {level.tokens} tokens, real, small-row and outlier inputs  "
    console.print(Text.assemble((head, "bold"), verdict(level.passed)))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("module", "layers", "worst R", "on", "coefficient", "L∞", "L2", "verdict"):
        left = name in ("module", "layers", "on", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "verdict")
    for row in module_rows(level.modules):
        table.add_row(*row)
    console.print(table)
    if level.depth:
        last = level.depth[-1]
        console.print(
            f"after {last.path}: error {last.ported:.2e}, reference's own {last.reference:.2e}",
            style="dim",
        )


def module_rows(modules: list[ModuleResult]) -> list[tuple[str, ...]]:
    """One row per class: its worst figures over layers and inputs, and how its modules did."""
    groups: dict[str, list[ModuleResult]] = defaultdict(list)
    for module in modules:
        groups[module.class_name].append(module)
    rows: list[tuple[str, ...]] = []
    for name, found in groups.items():
        worst = max(found, key=lambda m: m.figures.r if m.figures.r is not None else float("inf"))
        verdicts = Counter(m.figures.verdict for m in found)
        layers = sorted({m.layer for m in found if m.layer is not None})
        count = len({m.path for m in found})
        figures = worst.figures
        rows.append((
            f"{name} ×{count}", ranges(layers), number(figures.r), worst.inputs,
            f"{min(m.figures.coefficient for m in found):.4f}", number(figures.linf_ratio),
            number(figures.l2_ratio), ", ".join(f"{n} {SHORT[Verdict(v)]}" for v, n in verdicts.items()),
        ))  # fmt: skip
    return rows


def number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}"


def _print_level2(level: Level2, console: Console) -> None:
    console.print(
        Text.assemble((f"\nLevel 2, prompts: {level.host}  ", "bold"), verdict(level.passed))
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = ("mode", "top 5", "50", "1000", "all", "R", "coefficient", "KL", "agreement", "verdict")
    for name in names:
        table.add_column(name, justify="left" if name == "mode" else "right")
    for mode in level.modes:
        worst = {k: max((p.errors[k] for p in mode.prompts if k in p.errors), default=None)
                 for k in ("5", "50", "1000", "all")}  # fmt: skip
        kl = [p.kl_mean for p in mode.prompts if p.kl_mean is not None]
        table.add_row(
            mode.mode, *("–" if v is None else f"{v:.2%}" for v in worst.values()), number(mode.r),
            f"{mode.coefficient:.4f}", f"{max(kl):.1e}" if kl else "–",
            f"{mode.agreement:.1%} ({mode.reference_agreement:.1%})", verdict(mode.passed),
        )  # fmt: skip
    console.print(table)
    if level.cache:
        worst_cache = min(level.cache, key=lambda c: (c.figures.passed, c.figures.coefficient))
        bad = sum(not c.figures.passed for c in level.cache)
        console.print(
            f"KV cache: {len(level.cache)} comparisons, {bad} failed; lowest coefficient "
            f"{worst_cache.figures.coefficient:.4f} (layer {worst_cache.layer} {worst_cache.part}, "
            f"{worst_cache.mode})",
            style="dim",
        )
    for mode_name, why in level.skipped.items():
        console.print(f"{mode_name} left out: {why}", style="yellow")


def _print_level1(level: Level1, console: Console) -> None:
    console.print(Text.assemble(("\nLevel 1, tasks  ", "bold"), verdict(level.passed)))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (
        "task",
        "metric",
        "documents",
        "ported",
        "reference",
        "difference",
        "95 %",
        "p",
        "verdict",
    ):
        table.add_column(name, justify="left" if name in ("task", "metric") else "right")
    for task in level.tasks:
        low, high = task.interval
        table.add_row(
            task.task, task.metric, str(task.documents), f"{task.ported:.4g}", f"{task.reference:.4g}",
            f"{task.difference:+.3g}", f"{low:+.3g} … {high:+.3g}", f"{task.p_value:.3g}", task.verdict,
        )  # fmt: skip
    console.print(table)


def _print_failure(failure: Failure, console: Console) -> None:
    where = failure.where + (f" (layer {failure.layer})" if failure.layer is not None else "")
    inputs = f", {failure.inputs} inputs" if failure.inputs and failure.level == 3 else ""
    console.print(Text.assemble(("\n✗ ", "bold red"), (f"{where}{inputs}", "bold")), soft_wrap=True)
    lines = [
        failure.why,
        failure.bad.text if failure.bad is not None else "",
        f"rules there: {', '.join(failure.rules)}"
        if failure.rules and failure.where != "bisect"
        else "",
        f"behind it: {failure.explained}" if failure.explained else "",
        *(f"try: {c}" for c in failure.commands),
    ]
    for line in lines:
        if line:
            console.print(f"  {line}", soft_wrap=True)
