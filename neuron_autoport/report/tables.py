"""Tables of the terminal report."""

from __future__ import annotations

from collections.abc import Iterator

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neuron_autoport.report import schema as s
from neuron_autoport.report.numbers import percent

_MAX_OPERATIONS = 5


def leftover_table(rows: list[s.Leftover], limit: int) -> Iterator[Padding]:
    """What no rule claimed, the heaviest first; what exceeds `limit` rows is summed up."""
    if not rows:
        return
    table = _table()
    table.add_column("operation", overflow="fold")
    table.add_column("in", overflow="fold")
    table.add_column("FLOPs", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    shown = rows if len(rows) <= limit else rows[: limit - 1]
    for row in shown:
        table.add_row(
            _what(row),
            Text(_where(row), style="cyan"),
            percent(row.flops_share),
            percent(row.bytes_share),
        )
    rest = rows[len(shown) :]
    if rest:
        flops, moved = sum(r.flops_share for r in rest), sum(r.bytes_share for r in rest)
        table.add_row(f"{len(rest)} more", "", percent(flops), percent(moved), style="dim")
    yield _indented(table)


def _where(row: s.Leftover) -> str:
    if row.kind == "untraced":
        return f"{row.calls} modules"
    return f"{row.class_name} ×{row.calls}" if row.calls > 1 else row.class_name


def _what(row: s.Leftover) -> Text:
    """`lm_head (linear)`, `attention`, `apply_rotary_pos_emb: mul, add`, `add (elementwise)`."""
    if row.modules:
        return Text.assemble(", ".join(row.modules), (f" ({row.kind})", "dim"))
    if row.kind == "untraced":
        return Text("not reached by the trace", style="red")
    if row.kind != "elementwise":
        return Text(row.kind)
    names = row.operations[:_MAX_OPERATIONS]
    listed = ", ".join(names) + (", …" if len(row.operations) > len(names) else "")
    if row.function is None:
        return Text.assemble(listed, (f" ({row.kind})", "dim"))
    return Text.assemble(row.function.split("<locals>.")[-1], (f": {listed}", "dim"))


def limit_table(report: s.Report) -> Iterator[Padding]:
    """Broken limits by call and class, with the numbers and the ranks from which they hold."""
    rows: dict[tuple[str, str], dict[tuple[str, str, str], int]] = {}
    for cls in report.classes:
        for site in cls.sites:
            for limit in site.limits:
                ranks = str(limit.holds_from_tp) if limit.holds_from_tp else "never"
                row = (limit.text, limit.figures, ranks)
                found = rows.setdefault((site.call, cls.name), {})
                found[row] = found.get(row, 0) + len(cls.paths)
    if not rows:
        return
    table = _table()
    table.add_column("limit", overflow="fold")
    table.add_column("here", no_wrap=True)
    table.add_column("holds from tp", justify="right", no_wrap=True)
    for (call, name), limits in rows.items():
        times = f" ×{max(limits.values())}" if max(limits.values()) > 1 else ""
        table.add_row(Text.assemble((call, "yellow"), " in ", (name, "cyan"), times), "", "")
        for text, figures, ranks in limits:
            table.add_row(f"  {text}", figures, ranks)
    yield _indented(table)


def kernel_table(report: s.Report) -> Iterator[Padding]:
    """The kernels of NK functions that the model calls, at how many places, and what each takes."""
    calls: dict[str, int] = {}
    limits: dict[str, str] = {}
    for cls in report.classes:
        for kernel in (k for site in cls.sites for k in site.kernels):
            name = f"kernel: {kernel.name}"
            limits[name] = ", ".join(kernel.limits)
            if kernel.runs == name:
                calls[name] = calls.get(name, 0) + len(cls.paths)
    for name in sorted(calls):
        yield Padding(Text.assemble((name, "green"), f"  ×{calls[name]}"), (0, 0, 0, 2))
        yield Padding(Text(f"takes {limits[name]}", style="dim"), (0, 0, 0, 4))


def proof_table(proof: s.ProofInfo) -> Padding:
    """Error of the rewritten class and the original's own in both dtypes; whether it passed."""
    table = _table()
    table.add_column("rewritten / original error", overflow="fold")
    for dtype in ("fp32", "bf16"):
        table.add_column(dtype, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for c in proof.classes:
        table.add_row(c.class_name, _cell(c.fp32), _cell(c.bf16), _verdict(c.passed))
        if c.error is not None:
            table.add_row(Text(f"  {c.error}", style="red"))
        if c.no_bf16 is not None:
            table.add_row(Text(f"  the original does not run in bf16: {c.no_bf16}", style="dim"))
    if proof.logits is not None:
        table.add_row("logits", _cell(proof.logits), "", _verdict(proof.logits.passed))
    return _indented(table)


def _verdict(passed: bool) -> Text:
    return Text("passed", style="green") if passed else Text("failed", style="red")


def _cell(figures: s.Figures | None) -> str:
    return f"{figures.rewritten:.1e} / {figures.original:.1e}" if figures is not None else ""


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")


def _indented(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 2))
