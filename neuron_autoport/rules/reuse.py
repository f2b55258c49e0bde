"""Where a rule of the library fuses just what a new pattern says: its replacement, in the new pattern's names."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from neuron_autoport.rewrite.plan import ClassPlan
from neuron_autoport.rewrite.site import Site
from neuron_autoport.rules.equations import Draft
from neuron_autoport.rules.match import ModuleRef, RoleRef
from neuron_autoport.rules.region import is_view
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.ops import Op


@dataclass(frozen=True)
class Reused:
    """Fields of a rule file as text: all from `rule`, which does the same."""

    rule: Rule
    replace: str
    require: tuple[str, ...]
    weights: dict[str, str]
    shard: dict[str, str]
    neuron: tuple[str, ...]


def reuse(draft: Draft, plan: ClassPlan) -> Reused | None:
    """The site that does what the region does, if its replacement can be said in these names."""
    work = {op for op in draft.region.ops if not is_view(op) and op.name not in ("pieces", "slice")}
    for site in plan.sites:
        inside = {op for op in site.match.interior if not is_view(op)}
        roots = {site.match.values[name] for name in site.rule.outputs}
        if work <= inside and set(draft.region.roots) <= roots and not site.rule.decode:
            names = _names(draft, site)
            if names is not None:
                return _said(site, names)
    return None


def _names(draft: Draft, site: Site) -> dict[str, str] | None:
    """What each name of the site's rule is called in the draft, or its text if it is a number or choice."""
    by_op: dict[Op, str] = {op: name for name, op in draft.captured.items()}
    by_path = {str(op.target): n for n, op in draft.captured.items() if n in draft.kinds}
    found: dict[str, str] = {}
    for name, value in site.match.values.items():
        if name in site.rule.choices:
            found[name] = site.rule.choices[name][str(value)]
        elif isinstance(value, ModuleRef | RoleRef):
            if value.path not in by_path:
                return None
            found[name] = by_path[value.path]
        elif isinstance(value, Op):
            if value in by_op:
                found[name] = by_op[value]
        elif isinstance(value, int | float):
            found[name] = repr(value)
        elif value is not None:
            return None
    for spec in site.rule.weights:
        found |= {n: n for n in spec.names if n not in found}
    return found


def _said(site: Site, names: dict[str, str]) -> Reused | None:
    rule = site.rule
    texts = [ast.unparse(rule.replace), *(t for t, _ in rule.require), *(t for t, _ in rule.neuron)]
    if any(not _read(text) <= {*names, "NF", "NK", "tp"} for text in texts[:1]):
        return None
    require = tuple(_renamed(t, names) for t in texts[1:] if _fits(t, names))
    known = [t for t, _ in rule.neuron if _fits(t.rpartition(": ")[2], names)]
    weights = {", ".join(s.names): f"{s.how}({', '.join(names[x] for x in s.sources)})"
               for s in rule.weights}  # fmt: skip
    own = {n for s in rule.weights for n in s.names}
    return Reused(
        rule=rule,
        replace=_renamed(texts[0], {n: t for n, t in names.items() if n not in own}),
        require=require[: len(rule.require)],
        weights=weights,
        shard={names.get(n, n): how for n, how in rule.shard.items()},
        neuron=tuple(_renamed_limit(t, names) for t in known),
    )


def _read(text: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def _fits(text: str, names: Iterable[str]) -> bool:
    return _read(text) <= {*names, "tp"}


def _renamed_limit(text: str, names: dict[str, str]) -> str:
    """A limit may begin with the phase or target it is for."""
    scope, colon, rest = text.rpartition(": ")
    return f"{scope}{colon}{_renamed(rest, names)}"


def _renamed(text: str, names: dict[str, str]) -> str:
    return ast.unparse(_Rename(names).visit(ast.parse(text)))


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        text = self.names.get(node.id)
        return ast.parse(text, mode="eval").body if text is not None else node
