"""The plan of one site: which rule, what was found, which weights move where, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuron_autoport.fused import FusedWeight, WeightPart
from neuron_autoport.rules.match import Match, ModuleRef, RoleRef
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.attention_ops import attention_operands
from neuron_autoport.trace.ops import Op
from neuron_autoport.trace.spans import Span


@dataclass(frozen=True, eq=False)
class Site:
    """One place in one class where a rule applies. found: what was captured, for reports."""

    rule: Rule
    match: Match
    span: Span
    weights: tuple[FusedWeight, ...]
    found: dict[str, str] = field(default_factory=dict)

    @property
    def modules(self) -> set[str]:
        """Paths of the child modules this site replaces."""
        return {p.module for w in self.weights for p in w.parts}


def plan_weights(rule: Rule, match: Match, taken: set[str]) -> tuple[FusedWeight, ...]:
    """The fused weights of a match.

    Args:
        taken: attribute names the module class already has; new ones avoid them.
    """
    refs = {n: v for n, v in match.values.items() if isinstance(v, ModuleRef)}
    made, used = [], set()
    for spec in rule.weights:
        used |= set(spec.sources)
        if spec.how == "stack":
            parts = _joined(tuple(_stacked(match, refs, s) for s in spec.sources), refs)
            used |= {n for n, r in refs.items() if any(r.path == p.module for p in parts)}
            made.append((spec.names[0], _stem(spec.names[0], taken), parts))
            continue
        (source,) = (refs[s] for s in spec.sources)
        step = source.facts.out_features // len(spec.names)
        for i, name in enumerate(spec.names):
            part = _part(source, i * step, (i + 1) * step)
            made.append((name, _stem(name, taken), (part,)))
    for name, ref in refs.items():
        if name not in used:
            made.append((name, _stem(ref.path.replace(".", "_"), taken), (_part(ref),)))
    return tuple(_fused(rule, match, *m) for m in made)


def _stem(name: str, taken: set[str]) -> str:
    free = name
    while any(f"{free}_{kind}" in taken for kind in ("weight", "bias", "sizes", "heads")):
        free = f"nf_{free}"
    return free


def _part(ref: ModuleRef, start: int = 0, end: int | None = None) -> WeightPart:
    facts = ref.facts
    stop = facts.out_features if end is None else end
    whole = start == 0 and stop == facts.out_features
    return WeightPart(ref.path, facts.weight, facts.bias, facts.layout, start, stop, whole)


def _stacked(match: Match, refs: dict[str, ModuleRef], name: str) -> WeightPart:
    """A whole module, or the columns of one that an output of the match is cut from."""
    if name in refs:
        return _part(refs[name])
    cut = match.columns[name]
    facts = next(r for r in refs.values() if r.path == cut.module).facts
    return WeightPart(cut.module, facts.weight, facts.bias, facts.layout, 0, 0, False, cut.columns)


def _joined(parts: tuple[WeightPart, ...], refs: dict[str, ModuleRef]) -> tuple[WeightPart, ...]:
    """One whole part, if the parts are all columns of one module in their order."""
    columns = [c for part in parts for c in part.columns or ()]
    ref = next(r for r in refs.values() if r.path == parts[0].module)
    if any(p.module != ref.path or p.columns is None for p in parts):
        return parts
    return (_part(ref),) if columns == list(range(ref.facts.out_features)) else parts


def _fused(
    rule: Rule, match: Match, name: str, attr: str, parts: tuple[WeightPart, ...]
) -> FusedWeight:
    shard = rule.shard.get(name, "replicate")
    refs = [v for v in match.values.values() if isinstance(v, ModuleRef)]
    sizes = tuple(p.width for p in parts)
    if shard in ("heads", "plan"):
        sizes = tuple(_width(match, o) for o in rule.outputs)
    inputs = next(r.facts.in_features for r in refs if r.path == parts[0].module)
    cuts = [match.columns[o] for o in rule.outputs if o in match.columns]
    heads = tuple(c.heads for c in cuts) if any(len(c.tail) > 1 for c in cuts) else ()
    return FusedWeight(name, attr, parts, shard, inputs, sizes, _head_dim(match, shard), heads)


def _width(match: Match, output: str) -> int:
    """Columns of one output."""
    cut = match.columns.get(output)
    return len(cut.columns) if cut is not None else match.values[output].shape[-1]


def _head_dim(match: Match, shard: str) -> int | None:
    if shard != "heads":
        return None
    attention = next(
        (
            found
            for v in match.values.values()
            if isinstance(v, Op) and (found := attention_operands(v))
        ),
        None,
    )
    return attention[0].shape[-1] if attention is not None else None


def describe(match: Match) -> dict[str, Any]:
    """What was found, for reports: numbers, activations, sizes and modules by capture name."""
    found: dict[str, Any] = {}
    for name, value in match.values.items():
        if isinstance(value, ModuleRef):
            bias = " + bias" if value.facts.bias else ""
            sizes = f"{value.facts.in_features}→{value.facts.out_features}"
            found[name] = f"{value.path} {sizes}{bias}"
        elif isinstance(value, RoleRef):
            inner = {k: v for k, v in describe(value.match).items() if k not in found}
            found |= {name: f"{value.path} ({value.rule.name})", **inner}
        elif isinstance(value, int | float | str):
            found[name] = f"{value:g}" if isinstance(value, float) else str(value)
        elif isinstance(value, Op) and value.name == "attention":
            found.update(_attention_facts(value))
    return found


def _attention_facts(op: Op) -> dict[str, str]:
    query, key = op.inputs[0], op.inputs[1]
    facts = {"heads": f"{query.shape[1]}/{key.shape[1]} of {query.shape[-1]}"}
    labels = {
        "scaling": "scale",
        "sliding_window": "window",
        "softcap": "softcap",
        "s_aux": "sinks",
    }
    for key_name, label in labels.items():
        value = op.attrs.get(key_name)
        if value is not None:
            text = value.label if isinstance(value, Op) else str(value)
            facts[label] = f"{value:g}" if isinstance(value, float) else text
    return facts
