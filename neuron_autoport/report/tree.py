"""The module tree: one line per module, with its rule, the call, and what was found."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from neuron_autoport.report import schema as s
from neuron_autoport.report.numbers import sizes
from neuron_autoport.rewrite.reasons import STATED

LIMIT_SIGN = "▲"
_LEVEL = 4  # columns of one level of the tree
_PLAIN, _DIM, _GOOD, _BAD = "not bold", "not bold dim", "not bold green", "not bold red"


def module_tree(report: s.Report, width: int) -> Tree:
    """The folded module structure; modules that a site replaces are not shown beside it."""
    classes = report.by_id()
    root = Tree(_label(report.tree, classes, width), guide_style="dim")
    _grow(root, report.tree, classes, width)
    return root


def _grow(tree: Tree, node: s.Node, classes: dict[str, s.ClassInfo], width: int) -> None:
    for child in node.children:
        if child.inside is None:
            branch = tree.add(_label(child, classes, width - _LEVEL))
            _grow(branch, child, classes, width - _LEVEL)


def _label(node: s.Node, classes: dict[str, s.ClassInfo], room: int) -> Text:
    cls = classes[node.class_id]
    label = Text.assemble((node.name, "bold"), ("  " if node.name else ""), (cls.name, "cyan"))
    if cls.linear is not None:
        label.append(f"  {cls.linear}", style=_DIM)
    rows = [_site(site) for site in cls.sites] + _moe(cls) + _problems(cls)
    if len(rows) == 1:
        line = _joined(rows[0])
        if label.cell_len + line.cell_len + 2 <= room:
            return label.append("  ").append_text(line)
    for row in rows:
        for line in _wrapped(row, room - _LEVEL):
            label.append("\n" + " " * _LEVEL).append_text(line)
    return label


def _site(site: s.SiteInfo) -> list[Text]:
    """The pieces of a site's line; a line may be broken between them."""
    head = Text.assemble((site.rule, _GOOD), (" → ", _PLAIN), (site.call, _GOOD))
    pieces = [head, *(Text(fact, style=_PLAIN) for fact in site_facts(site))]
    if site.limits:
        pieces[-1].append(f" {LIMIT_SIGN}", style="yellow")
    return pieces


def _moe(cls: s.ClassInfo) -> list[list[Text]]:
    """A mixture-of-experts block: what it is, and what each phase becomes."""
    if cls.moe is None:
        return []
    moe = cls.moe
    unread = {str(u.part): f"{u.part} not understood: {u.message} ({u.code})" for u in moe.unread}
    parts = (("router", moe.router), ("experts", moe.experts), ("shared", moe.shared))
    said = [text or unread[part] for part, text in parts if text or part in unread]
    rows = [[Text(said[0], style=_GOOD if moe.router else _BAD)]]
    rows[0] += [Text(text, style=_PLAIN) for text in said[1:]]
    for phase, calls in (("prefill", moe.prefill), ("decode", moe.decode), ("vLLM", moe.vllm)):
        rows.append([Text(f"{phase} → {calls}", style=_DIM)])
    return rows


def _problems(cls: s.ClassInfo) -> list[list[Text]]:
    """Refused and dropped rules; the sections below the tree say why."""
    said = [f"✗ {r.rule} refused ({r.code})" for r in cls.refusals if r.code != STATED]
    said += [f"✗ {name} dropped, its proof failed" for name in cls.dropped]
    if cls.end is not None:
        said.append(f"✗ not traced to the end ({cls.end.code})")
    return [[Text(text, style=_BAD)] for text in said]


def _joined(pieces: list[Text]) -> Text:
    return Text("  ").join(pieces)


def _wrapped(pieces: list[Text], room: int) -> list[Text]:
    """The pieces on as many lines as they need; all but the first are indented."""
    lines = [pieces[0].copy()]
    for piece in pieces[1:]:
        if lines[-1].cell_len + 2 + piece.cell_len > room:
            lines.append(Text(" " * _LEVEL).append_text(piece))
        else:
            lines[-1].append("  ").append_text(piece)
    return lines


def site_facts(site: s.SiteInfo) -> list[str]:
    """Sizes, bias, and what was found, as short words."""
    facts = [sizes(site.weights)] if site.weights else []
    biased = _bias(site.weights)
    if biased:
        facts.append(biased)
    for name, value in site.found.items():
        facts.append(value.replace(" of ", " heads of ") if name == "heads" else f"{name}={value}")
    return facts


def _bias(weights: list[s.Weight]) -> str:
    """`bias` if all parts have one, else which do."""
    parts = [p for w in weights for p in w.parts]
    having = [p.module for p in parts if p.bias is not None]
    if not having:
        return ""
    return "bias" if len(having) == len(parts) else "bias on " + ", ".join(dict.fromkeys(having))
