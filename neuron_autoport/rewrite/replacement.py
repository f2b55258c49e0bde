"""The text that stands in place of a match: the rule's `replace` with captures put in."""

from __future__ import annotations

import ast
from typing import Any

from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rewrite.site import FusedWeight
from neuron_autoport.rules.match import Match, ModuleRef
from neuron_autoport.rules.rule import Rule
from neuron_autoport.trace.ops import Op

_WIDTH = 92


def replacement_text(
    rule: Rule,
    match: Match,
    weights: tuple[FusedWeight, ...],
    sources: dict[str, str],
    indent: int = 4,
) -> str:
    """Python source of the right side of the rule's `replace`.

    Args:
        sources: source text of each captured value the replacement reads.
        indent: columns the statement it stands in is indented by.
    """
    tree = _Fill(rule, match, {w.name: w for w in weights}, sources).visit(
        _copy(rule.replace.value)
    )
    return layout(ast.unparse(ast.fix_missing_locations(tree)), indent)


def reads(rule: Rule) -> set[str]:
    """Names the replacement reads."""
    return {n.id for n in ast.walk(rule.replace.value) if isinstance(n, ast.Name)} - {"NF", "NK"}


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


class _Fill(ast.NodeTransformer):
    def __init__(
        self, rule: Rule, match: Match, weights: dict[str, FusedWeight], sources: dict[str, str]
    ) -> None:
        self.rule, self.match, self.weights, self.sources = rule, match, weights, sources

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in self.weights:
            weight = self.weights[node.value.id]
            if node.attr == "bias" and not weight.has_bias:
                return ast.Constant(None)
            return ast.parse(f"self.{weight.attr}_{node.attr}", mode="eval").body
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        name = node.id
        if name in ("NF", "NK"):
            return node
        value = self.match.values.get(name)
        if name in self.rule.choices:
            return ast.parse(self.rule.choices[name][str(value)], mode="eval").body
        if name in self.sources:
            return ast.parse(f"({self.sources[name]})", mode="eval").body
        if isinstance(value, int | float):
            return ast.Constant(value)
        if isinstance(value, ModuleRef | Op):
            raise Refused("AP207", f"`{name}` has no source text")
        raise Refused("AP207", f"`{name}` is not bound")

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        node.keywords = [k for k in node.keywords if not _is_none(k.value)]
        return node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def layout(text: str, indent: int = 4) -> str:
    """`text` on one line if it is short, else the longest call's arguments on lines of their own."""
    if len(text) + indent <= _WIDTH:
        return text
    tree = ast.parse(text, mode="eval").body
    call = max(
        (n for n in ast.walk(tree) if isinstance(n, ast.Call)),
        key=lambda n: len(n.args) + len(n.keywords),
    )
    inner = [ast.unparse(a) for a in call.args]
    inner += [f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords]
    flat = ast.unparse(call)
    # libcst adds the indentation of the block the text is put in.
    body = "".join(f"    {item},\n" for item in inner)
    spread = f"{ast.unparse(call.func)}(\n{body})"
    return ast.unparse(tree).replace(flat, spread, 1)
