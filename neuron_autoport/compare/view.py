"""A comparison as text: header, checklist, configuration, disagreements, structure.

Only `Comparison` is read, so the same text can be drawn from the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neuron_autoport.compare import schema as s
from neuron_autoport.compare.reading import fold
from neuron_autoport.report.numbers import count

_LONGEST = 60
_SIGN = {"rule": ("✓", "green"), "refused": ("✗", "red"), "host": ("·", "dim")}


def print_comparison(found: s.Comparison, console: Console) -> None:
    """All of it; sections that have nothing to say are left out."""
    _header(found, console)
    traits = {t.key: t for t in found.traits}
    fields = {f.name: f for f in found.fields}
    for point in found.points:
        console.print()
        _point(point, traits, fields, found, console)
    rest = [f for f in found.fields if f.point is None]
    if rest:
        _title("Other configuration fields that differ", console)
        _show(_field_table(rest, found), console)
    if found.disagreements:
        _title("Where a configuration and its graph disagree: the graph is what is ported", console)
        for d in found.disagreements:
            name = (found.a if d.side == "a" else found.b).name
            said = f"  {name}: {d.field} is {shown_value(d.value)}; the graph has {d.graph}"
            console.print(Text(said), soft_wrap=True)
    _title("Structure, equal siblings folded", console)
    _show(_structure(found), console)


def _header(found: s.Comparison, console: Console) -> None:
    for letter, model in (("A", found.a), ("B", found.b)):
        kind = f" ({model.model_type})" if model.model_type != model.name else ""
        size = f"{count(model.parameters)} parameters"
        line = f"{kind} · {model.architecture} · {size}"
        console.print(Text.assemble((f"{letter}  {model.name}", "bold"), line), soft_wrap=True)
    differing = [p.name for p in found.points if p.differs]
    said = f"differ in: {', '.join(differing)}" if differing else "do the same in all eight points"
    _show(Text(f"The graphs {said}.", style="dim"), console, indent=0)


def _title(text: str, console: Console) -> None:
    console.print()
    console.print(Text(text, style="bold"), soft_wrap=True)


def _point(
    point: s.Point,
    traits: dict[str, s.Trait],
    fields: dict[str, s.FieldDiff],
    found: s.Comparison,
    console: Console,
) -> None:
    state = Text("differs", style="yellow") if point.differs else Text("same", style="green")
    head = Text.assemble((f"{point.number} {point.name}", "bold"), ": ", state)
    console.print(head.append(f"  ({point.touches})", style="dim"))
    rows = [traits[key] for key in point.traits]
    own = [fields[name] for name in point.fields]
    if rows or own:
        table = _table(("", found.a.name, found.b.name))
        for trait in rows:
            table.add_row(Text(trait.label), Text(trait.a), Text(trait.b))
        for field in own:
            table.add_row(Text(field.name, style="cyan"), _side(field, "a"), _side(field, "b"))
        _show(table, console)
    for line in point.means:
        _show(_hanging("→", "yellow" if point.differs else "dim", Text(line)), console)
    for handler in point.handled:
        sign, style = _SIGN[handler.kind]
        text = Text.assemble((handler.name, style if style != "dim" else ""), f": {handler.text}")
        _show(_hanging(sign, style, text), console)


def _side(field: s.FieldDiff, side: str) -> Text:
    there, value = (field.in_a, field.a) if side == "a" else (field.in_b, field.b)
    return Text(shown_value(value), style="cyan") if there else Text("no such field", style="dim")


def shown_value(value: object) -> str:
    """A configuration value as text; a long list folded."""
    if isinstance(value, list) and len(value) > 3:
        return fold({i: str(v) for i, v in enumerate(value)}, len(value))
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _field_table(fields: Iterable[s.FieldDiff], found: s.Comparison) -> Table:
    table = _table(("", found.a.name, found.b.name))
    for field in fields:
        table.add_row(Text(field.name, style="cyan"), _side(field, "a"), _side(field, "b"))
    return table


def _structure(found: s.Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", width=1)
    for name in (found.a.name, found.b.name):
        table.add_column(name, ratio=1, overflow="fold")
    for row in found.structure:
        mark = "" if row.same else ("−" if row.b is None else "+" if row.a is None else "≠")
        style = "" if row.same else "yellow"
        cells = [Text("  " * row.depth + text if text else "") for text in (row.a, row.b)]
        table.add_row(mark, *cells, style=style)
    return table


def _table(names: tuple[str, str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(names[0], no_wrap=True, min_width=22)
    for name in names[1:]:
        table.add_column(name, overflow="fold")
    return table


def _hanging(sign: str, style: str, text: Text) -> Table:
    """A sign, and a text that is broken in a column of its own."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column(overflow="fold")
    table.add_row(Text(sign, style=style), text)
    return table


def _show(part: RenderableType, console: Console, indent: int = 2) -> None:
    """Indented, without the spaces that rich fills lines up with."""
    with console.capture() as captured:
        console.print(Padding(part, (0, 0, 0, indent)))
    console.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
