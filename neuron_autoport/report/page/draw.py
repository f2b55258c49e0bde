"""A directed graph of `FlowNode` as SVG: rows from top to bottom, edges that bend around nodes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import networkx as nx
from markupsafe import Markup

from neuron_autoport.report.page.flow import FlowNode

_ROW, _HEIGHT, _GAP, _CHAR, _PAD = 46, 24, 14, 6.7, 16
_SWEEPS = 4


@dataclass(eq=False)
class _Box:
    """A node, or (node None) a bend of an edge that passes its row. x: of its middle, in pixels."""

    node: FlowNode | None
    x: float = 0.0

    @property
    def width(self) -> float:
        return len(self.node.label) * _CHAR + _PAD if self.node is not None else _GAP / 2


def draw(graph: nx.DiGraph, title: str) -> Markup:
    """The picture; nodes carry their kind and the key of their site as classes.

    Args:
        graph: acyclic. title: what is read out instead of the picture.
    """
    rows, links = _place(graph)
    _untangle(rows, links)
    width = max(sum(b.width + _GAP for b in row) for row in rows) + _GAP
    for row in rows:
        _spread(row, width)
    level = {box: i for i, row in enumerate(rows) for box in row}
    height = len(rows) * _ROW
    parts = [_edge(a, b, level) for a, b in links]
    parts += [_node(box, level[box]) for box in level if box.node is not None]
    head = Markup(
        '<svg viewBox="0 0 {w:.0f} {h}" width="{w:.0f}" height="{h}" role="img" aria-label="{t}">'
    ).format(w=width, h=height, t=title)
    return head + Markup("").join(parts) + Markup("</svg>")


def _place(graph: nx.DiGraph) -> tuple[list[list[_Box]], list[tuple[_Box, _Box]]]:
    """Every node in the row after its last source; an edge over several rows gets a bend in each."""
    rows: list[list[_Box]] = []
    boxes: dict[FlowNode, _Box] = {}
    level: dict[FlowNode, int] = {}
    for i, generation in enumerate(nx.topological_generations(graph)):
        rows.append([])
        for node in generation:
            boxes[node], level[node] = _Box(node), i
            rows[i].append(boxes[node])
    links = []
    for source, target in graph.edges:
        last = boxes[source]
        for i in range(level[source] + 1, level[target]):
            bend = _Box(None)
            rows[i].append(bend)
            links.append((last, bend))
            last = bend
        links.append((last, boxes[target]))
    return rows, links


def _untangle(rows: list[list[_Box]], links: list[tuple[_Box, _Box]]) -> None:
    """Order each row by the mean place of its neighbours in the row before, then after (barycentre)."""
    above: dict[_Box, list[_Box]] = {}
    below: dict[_Box, list[_Box]] = {}
    for a, b in links:
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for row in rows if down else reversed(rows):
            place = {box: i / len(r) for r in rows for i, box in enumerate(r)}
            mean = {box: fmean(place[n] for n in near.get(box, [box])) for box in row}
            row.sort(key=mean.__getitem__)


def _spread(row: list[_Box], width: float) -> None:
    """Give the boxes of a row their places, the row in the middle of the picture."""
    x = (width - sum(b.width + _GAP for b in row) + _GAP) / 2
    for box in row:
        box.x = x + box.width / 2
        x += box.width + _GAP


def _edge(a: _Box, b: _Box, level: dict[_Box, int]) -> Markup:
    top = level[a] * _ROW + (_HEIGHT + _ROW) / 2 if a.node is not None else (level[a] + 0.5) * _ROW
    end = level[b] * _ROW + (_ROW - _HEIGHT) / 2 if b.node is not None else (level[b] + 0.5) * _ROW
    middle = (top + end) / 2
    path = f"M{a.x:.1f} {top:.1f}C{a.x:.1f} {middle:.1f} {b.x:.1f} {middle:.1f} {b.x:.1f} {end:.1f}"
    return Markup('<path d="{}"/>').format(path)


def _node(box: _Box, row: int) -> Markup:
    assert box.node is not None
    x, y = box.x - box.width / 2, row * _ROW + (_ROW - _HEIGHT) / 2
    return Markup(
        '<g class="{} {}"><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="5"/>'
        '<text x="{:.1f}" y="{:.1f}">{}</text></g>'
    ).format(
        box.node.kind, box.node.key, x, y, box.width, _HEIGHT, box.x, y + _HEIGHT - 8, box.node.label
    )  # fmt: skip
