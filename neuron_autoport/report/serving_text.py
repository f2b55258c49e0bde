"""The serving table as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neuron_autoport.report.schema_serving import ServingInfo


def serving_title(info: ServingInfo | None) -> str:
    """The heading of the section; empty where there is none."""
    if info is None:
        return ""
    ranks = f"{info.tp} rank" + ("" if info.tp == 1 else "s")
    return f"On {info.chip}, {ranks}, as the Neuron runner would serve it (from sizes, not tried)"


def serving_lines(info: ServingInfo | None) -> Iterator[RenderableType]:
    """The section: what is refused, sizes that work, then the table of calls."""
    if info is None:
        return
    if info.unserved is not None:
        yield _indented(Text(f"not served: {info.unserved}", style="red"))
        return
    for refusal in info.refused:
        yield _indented(Text.assemble(("refused  ", "red"), refusal.message))
        yield Padding(Text(refusal.instead, style="dim"), (0, 0, 0, 11))
    yield _indented(Text(f"--tp that works: {_listed(info.valid_tp)}"))
    yield _indented(Text(f"with the decode kernel: {_listed(info.decode_kernel_tp)}"))
    for name, count in info.kv_heads.items():
        copies = info.kv_copies[name]
        held = f", each held by {copies} ranks" if copies > 1 else ""
        yield _indented(Text(f"{name}: {count} key/value head{'s' * (count > 1)} per rank{held}"))
    for name, reason in info.whole.items():
        yield _indented(Text(f"{name} is whole on every rank: {reason}"))
    yield from _tables(info)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _tables(info: ServingInfo) -> Iterator[RenderableType]:
    """A table for each phase; buckets whose calls run alike share their lines."""
    lines: dict[tuple[str, str, str, str, int], list[int]] = {}
    for row in info.calls:
        key = (row.phase, row.class_name, row.call, row.runs, row.count)
        lines.setdefault(key, []).append(row.tokens)
    tables: dict[str, Table] = {}
    for (phase, name, call, runs, count), tokens in lines.items():
        heading = f"{phase} {_listed(tokens)}"
        if heading not in tables:
            tables[heading] = Table.grid(padding=(0, 2, 0, 0))
            tables[heading].add_column(no_wrap=True)
            tables[heading].add_column(no_wrap=True)
            tables[heading].add_column()
        own = runs.startswith("kernel: neuron_autoport.")  # the call names it already
        shown = f"{name} ×{count}" if count > 1 else name
        style = "green" if runs.startswith(("kernel", "in ")) else ""
        tables[heading].add_row(shown, call, Text("kernel" if own else runs, style=style))
    for heading, table in tables.items():
        yield _indented(Text(heading, style="dim"))
        yield Padding(table, (0, 0, 0, 4))


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))
