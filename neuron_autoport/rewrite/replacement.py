"""The text that stands in place of a match: the rule's `replace` with captures put in."""

from __future__ import annotations

import ast
from typing import Any

from neuron_autoport.fused import FusedWeight
from neuron_autoport.rewrite.names import parameter_text
from neuron_autoport.rewrite.reasons import Refused
from neuron_autoport.rules.match import Match, ModuleRef, RoleRef
from neuron_autoport.rules.passed import NotPlain, given, passed
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
    fill = _Fill(rule, match, {w.name: w for w in weights}, sources)
    tree = fill.visit(_copy(rule.replace.value))
    if rule.decode is not None:
        test = ast.parse("NF.decoding()", mode="eval").body
        tree = ast.IfExp(test=test, body=fill.visit(_copy(rule.decode)), orelse=tree)
    return layout(ast.unparse(ast.fix_missing_locations(tree)), indent)


def reads(rule: Rule) -> set[str]:
    """Names the replacement reads."""
    trees = [rule.replace.value, *([rule.decode] if rule.decode is not None else [])]
    names = {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return names - {"NF", "NK"}


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


class _Fill(ast.NodeTransformer):
    def __init__(
        self, rule: Rule, match: Match, weights: dict[str, FusedWeight], sources: dict[str, str]
    ) -> None:
        self.rule, self.match, self.weights, self.sources = rule, match, weights, sources

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        ref = self.match.values.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if isinstance(ref, RoleRef):
            return _role_argument(ref, node.attr)
        if isinstance(node.value, ast.Name):
            absent = node.value.id in self.match.values and self.match.values[node.value.id] is None
            if absent:  # an optional part that is not there
                return ast.Constant(None)
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
        if isinstance(value, int | float) or (value is None and name in self.match.values):
            return ast.Constant(value)
        if isinstance(value, ModuleRef | RoleRef | Op):
            raise Refused("AP207", f"`{name}` has no source text")
        raise Refused("AP207", f"`{name}` is not bound")

    def visit_Call(self, node: ast.Call) -> Any:
        spread = [k for k in node.keywords if k.arg is None and isinstance(k.value, ast.Name)]
        node.keywords = [k for k in node.keywords if k not in spread]
        self.generic_visit(node)
        for keyword in spread:
            assert isinstance(keyword.value, ast.Name)
            ref = self.match.values.get(keyword.value.id)
            node.keywords += role_arguments(ref) if isinstance(ref, RoleRef) else []
        node.keywords = [k for k in node.keywords if not _is_none(k.value)]
        return node


def role_arguments(ref: RoleRef) -> list[ast.keyword]:
    """What the rule of a captured module passes to its function, but for the input, by name.

    Raises:
        Refused: its replacement is more than one call of plain captures.
    """
    try:
        found = given(ref)
    except NotPlain as no:
        raise Refused("AP207", str(no)) from None
    return [ast.keyword(name, _text_of(ref, value)) for name, value in found.items()]


def _role_argument(ref: RoleRef, name: str) -> ast.expr:
    """One of them, or the function's default for it."""
    try:
        found = passed(ref)
    except NotPlain as no:
        raise Refused("AP207", str(no)) from None
    if name not in found:
        raise Refused("AP207", f"`{ref.rule.name}` passes no `{name}`")
    return _text_of(ref, found[name])


def _text_of(ref: RoleRef, value: Any) -> ast.expr:
    if isinstance(value, Op):
        return ast.parse(parameter_text(f"{ref.path}.{value.target}"), mode="eval").body
    return ast.Constant(value)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def layout(text: str, indent: int = 4) -> str:
    """`text` on one line if it is short, else the longest call's arguments on lines of their own."""
    if len(text) + indent <= _WIDTH:
        return text
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.Tuple):
        return "(\n" + "".join(f"    {ast.unparse(e)},\n" for e in tree.elts) + ")"
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
