"""An example of a rule made from its pattern: a small module that computes the equations and nothing else."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from neuron_autoport.rules.equations import WIDE, Draft, Equation
from neuron_autoport.rules.pattern import REDUCTIONS
from neuron_autoport.rules.spelling import SPELLED, SPELLED_WITH
from neuron_autoport.trace.facts import linear_of


def made_example(draft: Draft, name: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Source of a class `name`, and the shapes of its inputs.

    Its linear modules and parameters are those the pattern captures, in the sizes they were captured in.
    """
    inputs = draft.inputs
    lines = [f"class {name}(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        {line}" for line in _attributes(draft)]
    lines += ["", f"    def forward(self, {', '.join(inputs)}):"]
    lines += [f"        {line}" for line in _body(draft)]
    return "\n".join(lines) + "\n", tuple(draft.captured[n].shape for n in inputs)


def _attributes(draft: Draft) -> Iterator[str]:
    for name, kind in draft.kinds.items():
        op = draft.captured[name]
        if kind == "parameter":
            sizes = ", ".join(map(str, op.shape)) or "()"
            yield f"self.{name} = nn.Parameter(torch.ones({sizes}))"
            continue
        facts = linear_of(op.trace)
        assert facts is not None
        bias = "" if facts.bias else ", bias=False"
        yield f"self.{name} = nn.Linear({facts.in_features}, {facts.out_features}{bias})"


def _body(draft: Draft) -> Iterator[str]:
    *first, last = draft.equations
    plain = (last.targets == draft.outputs) and not last.split
    for equation in first if plain else draft.equations:
        yield f"{', '.join(equation.targets)} = {_value(equation, draft)}"
    yield f"return {_value(last, draft) if plain else ', '.join(draft.outputs)}"


def _value(equation: Equation, draft: Draft) -> str:
    text = ast.unparse(_Spell(draft).visit(copy.deepcopy(equation.value)))
    if not equation.split:
        return text
    sizes = [draft.captured[n].shape[-1] for n in equation.targets]
    return f"({text}).split({sizes}, dim=-1)" if " " in text else f"{text}.split({sizes}, dim=-1)"


class _Spell(ast.NodeTransformer):
    """From the words of a pattern to Python."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def visit_Name(self, node: ast.Name) -> ast.expr:
        kind = self.draft.kinds.get(node.id)
        return ast.parse(f"self.{node.id}", mode="eval").body if kind == "parameter" else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        arguments: list[ast.expr] = [self.visit(a) for a in node.args]
        texts = [ast.unparse(a) for a in arguments]
        if name in self.draft.kinds:
            text = f"self.{name}({texts[0]})"
        elif name in REDUCTIONS:
            keep = ", keepdim=True" * bool(node.keywords)
            text = f"torch.{name}({texts[0]}, {texts[1]}{keep})"
        elif name == "like":
            text = f"({texts[0]}).to({texts[1]}.dtype)"
        elif name in SPELLED_WITH:
            text = SPELLED_WITH[name].format(*texts)
        else:
            if getattr(node, WIDE, False):
                arguments[0] = ast.parse(f"({texts[0]}).float()", mode="eval").body
            return _Put(arguments[0]).visit(ast.parse(SPELLED[name], mode="eval").body)
        return ast.parse(text, mode="eval").body


class _Put(ast.NodeTransformer):
    """The operand in place of `x`."""

    def __init__(self, operand: ast.expr) -> None:
        self.operand = operand

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.operand if node.id == "x" else node
