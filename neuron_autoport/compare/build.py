"""Put two models side by side: read both, compare, and go through the checklist for a port of B."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import transformers

from neuron_autoport import __version__
from neuron_autoport.compare import schema as s
from neuron_autoport.compare.fields import disagreements, field_diffs, layout
from neuron_autoport.compare.points import POINTS, TRAITS, PointText
from neuron_autoport.compare.reading import Reading, read
from neuron_autoport.hosts.neuron.facts import LARGEST_HEAD
from neuron_autoport.models.source import ModelSource
from neuron_autoport.port import Port, port_model
from neuron_autoport.report.build import call_name
from neuron_autoport.report.fold import Folded, fold
from neuron_autoport.report.schema import ModelInfo, Versions
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.facts import linear_of

# What a value says where a model does not have the thing at all.
_NOTHING = ("none", "no", "flat", "all alike", "whole", "attention", "one after the other")


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two models: what it was read from, its plan, and what was read."""

    source: ModelSource
    port: Port
    reading: Reading
    values: dict[str, str]
    rules: tuple[Rule, ...]


def load_side(source: ModelSource, rules: tuple[Rule, ...]) -> Side:
    """Plan a model and read it.

    Raises:
        ModelError: the configuration does not build.
    """
    port = port_model(source, rules)
    reading = read(port, rules)
    return Side(source, port, reading, {**reading.values, "config.layout": layout(source)}, rules)


def compare(a: Side, b: Side) -> s.Comparison:
    """Everything `autoport diff` says. A is the example, B the model to port."""
    traits = _traits(a.values, b.values)
    fields = field_diffs(a.source.text_config, b.source.text_config)
    return s.Comparison(
        versions=Versions(
            autoport=__version__, transformers=transformers.__version__, torch=torch.__version__
        ),
        a=_info(a),
        b=_info(b),
        points=[_point(p, traits, fields, b) for p in POINTS],
        traits=traits,
        disagreements=[
            *disagreements("a", a.source, a.reading),
            *disagreements("b", b.source, b.reading),
        ],
        fields=fields,
        structure=structure(a.port, b.port),
    )


def _info(side: Side) -> ModelInfo:
    parameters = {id(p): p for p in side.port.model.parameters()}
    return ModelInfo(
        name=side.source.name,
        kind=side.source.kind,
        model_type=side.source.text_config.model_type,
        architecture=side.source.architecture,
        parameters=sum(p.numel() for p in parameters.values()),
        dtype="bfloat16",
    )


def _traits(a: dict[str, str], b: dict[str, str]) -> list[s.Trait]:
    found = []
    for key, text in TRAITS.items():
        one, other = a.get(key, "none"), b.get(key, "none")
        differs = one != other
        found.append(
            s.Trait(key=key, point=text.point, label=text.label, a=one, b=other, differs=differs)
        )
    return found


def _point(point: PointText, traits: list[s.Trait], fields: list[s.FieldDiff], b: Side) -> s.Point:
    differing = [t for t in traits if t.point == point.number and t.differs]
    own = [f.name for f in fields if f.point == point.number]
    means = [f"{t.label}: {TRAITS[t.key].means}" for t in differing]
    if not means:
        means = ["both graphs do the same here" + (", only fields differ" if own else "")]
    return s.Point(
        number=point.number,
        name=point.name,
        touches=point.touches,
        differs=bool(differing),
        traits=[t.key for t in differing],
        fields=own,
        means=means,
        handled=list(_handlers(point, b)),
    )


def _handlers(point: PointText, side: Side) -> Iterator[s.Handler]:
    """The rules that have sites in a model for this point, those that were refused, and the hosts."""
    sites: Counter[tuple[str, str]] = Counter()
    for _, site in side.port.sites():
        if site.rule.role in point.roles:
            sites[site.rule.name, call_name(site.rule)] += 1
    for (rule, call), number in sites.items():
        yield s.Handler(
            kind="rule", name=rule, text=f"{call} at {number} place{'s' * (number > 1)}"
        )
    for name, code, message in _refusals(point, side):
        yield s.Handler(kind="refused", name=name, text=f"{code}: {message}")
    texts: dict[str, list[str]] = {}
    for key, trait in TRAITS.items():
        has = side.values.get(key, "none") not in _NOTHING
        if trait.point == point.number and trait.host and has:
            texts.setdefault(trait.host, []).append(trait.label)
    for text, labels in texts.items():
        yield s.Handler(kind="host", name=", ".join(labels), text=text)
    wide = {f.head_dim for f in side.reading.attention.values() if f.head_dim > LARGEST_HEAD}
    if point.number == 1 and wide:
        what = f"heads of {max(wide)} exceed the {LARGEST_HEAD} of NF attention: torch on Neuron"
        yield s.Handler(kind="host", name="heads", text=what)
    if point.number == 1 and "other than attention" in side.values.get("layers.mixer", ""):
        what = "a token mixer without attention keeps a state that no host here has a cache for"
        yield s.Handler(kind="host", name="token mixers", text=what)


def _refusals(point: PointText, side: Side) -> list[tuple[str, str, str]]:
    """(rule, code, message) of the rules for this point that nearly applied, each once."""
    roles = {rule.name: rule.role for rule in side.rules}
    found = [(r.rule, r.code, r.message) for plan in side.port.plans for r in plan.refusals]
    return [f for f in dict.fromkeys(found) if roles.get(f[0]) in point.roles]


def structure(a: Port, b: Port) -> list[s.StructureRow]:
    """Both module trees, folded, line by line; lines of one name and depth stand side by side."""
    one, other = list(_lines(fold(a))), list(_lines(fold(b)))
    names = [[line[:2] for line in lines] for lines in (one, other)]
    rows: list[s.StructureRow] = []
    matcher = difflib.SequenceMatcher(None, names[0], names[1], autojunk=False)
    for kind, i, i2, j, j2 in matcher.get_opcodes():
        if kind == "equal":
            pairs = zip(one[i:i2], other[j:j2], strict=True)
            rows += [_row(left, right) for left, right in pairs]
        else:
            rows += [_row(left, None) for left in one[i:i2]]
            rows += [_row(None, right) for right in other[j:j2]]
    return rows


_Line = tuple[int, str, str, str]


def _row(a: _Line | None, b: _Line | None) -> s.StructureRow:
    depth = (a or b or (0,))[0]
    left, right = (line[2] if line else None for line in (a, b))
    same = a is not None and b is not None and a[3] == b[3]
    return s.StructureRow(depth=depth, a=left, b=right, same=same)


def _lines(node: Folded, depth: int = 0) -> Iterator[_Line]:
    """(depth, name without its range, text, what tells it apart) of a folded tree."""
    facts = linear_of(node.plan.trace)
    told = ""
    if facts is not None:
        told = f"{facts.in_features}→{facts.out_features}" + (" + bias" if facts.bias else "")
    what = told or node.plan.trace.module_class.__name__
    name = node.name.split(" ×")[0].rstrip("0123456789-, …")
    yield depth, name, f"{node.name} {what}".strip(), told
    for child in node.children:
        yield from _lines(child, depth + 1)
