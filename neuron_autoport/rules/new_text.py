"""The text of a new rule file, with comments for whoever goes on writing it."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neuron_autoport.rules.equations import Draft
from neuron_autoport.rules.left_out import LeftOut
from neuron_autoport.rules.reuse import Reused

TO_DO = "to do, no fused function is called yet"
_MEANING = {
    "linear": "a child module that computes x @ W + b",
    "parameter": "a parameter of the module itself",
}


@dataclass(frozen=True)
class ExampleText:
    """Source of one example, the shapes of its inputs, the arguments of its class."""

    source: str
    inputs: tuple[tuple[int, ...], ...]
    init: dict[str, Any]


def rule_text(
    name: str,
    draft: Draft,
    example: ExampleText,
    known: Reused | None,
    rest: tuple[LeftOut, ...],
    made_from: str,
    command: str,
) -> str:
    """The file.

    Args:
        known: a replacement that is right; without one the rule refuses, which is right as well.
        rest: operations of the module that the pattern leaves out.
    """
    lines = [
        f"# Written from {made_from}. To try it after each edit:",
        f"#   {command}",
        "# `autoport explain WORD` explains each field; nothing in a rule file runs but its examples.",
        f"rule: {name}",
        f"summary: {'part of ' * bool(rest)}what {made_from.rpartition(':')[2]} computes",
        *_match(draft, rest),
        *_where(draft),
        *(_known(known) if known is not None else _unknown(draft)),
        "examples:",
        "  matches:",
        *_example(example),
        "  # Modules that look like it and must be left alone:",
        "  # rejects:",
        "  #   - because: it adds where the pattern multiplies",
        "  #     source: |",
        "  #       class Other(nn.Module): ...",
    ]
    return "\n".join(lines) + "\n"


def _match(draft: Draft, rest: tuple[LeftOut, ...]) -> Iterator[str]:
    yield "# Equations that are found and replaced. A name that is called is an operation, or a module (`where`);"
    yield "# any other name is a captured value. Other spellings of the same computation match as well."
    if len(draft.equations) == 1:
        yield f"match: {draft.equations[0]}"
    else:
        yield "match: |"
        yield from (f"  {equation}" for equation in draft.equations)
    if _numbers(draft):
        yield "# A number matches itself only. Write a name for it, and `that_name: number` under `where`,"
        yield "# to match any number and pass it on."
    if rest:
        labels = dict.fromkeys(map(str, rest))
        text = f"Of the module, the pattern leaves out: {', '.join(labels)}."
        yield from textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


def _numbers(draft: Draft) -> bool:
    return any(
        isinstance(n, ast.Constant) and isinstance(n.value, float)
        for e in draft.equations
        for n in ast.walk(e.value)
    )


def _where(draft: Draft) -> Iterator[str]:
    """Kinds of the captures, those of one kind on one line."""
    if not draft.kinds:
        return
    yield "where:"
    for kind in dict.fromkeys(draft.kinds.values()):
        names = ", ".join(n for n, k in draft.kinds.items() if k == kind)
        said = _MEANING.get(
            kind, f"a child module that a rule with the role {kind} matches as a whole"
        )
        yield f"  {names}: {kind}  # {said}"


def _known(known: Reused) -> Iterator[str]:
    yield f"# This is what the rule {known.rule.name} does, too: edit it, or call another function."
    if known.require:
        yield "require:"
        yield from (f"  - {_plain(text)}" for text in known.require)
    if known.weights:
        yield "weights:"
        yield from (f"  {names}: {how}" for names, how in known.weights.items())
    if known.shard:
        yield f"shard: {{{', '.join(f'{n}: {how}' for n, how in known.shard.items())}}}"
    yield "replace: |"
    yield f"  {known.replace}"
    if known.neuron:
        yield "neuron:"
        yield from (f"  - {_plain(text)}" for text in known.neuron)


def _unknown(draft: Draft) -> Iterator[str]:
    yield "# Nothing is replaced yet: what matches stays in torch, and reports say so (AP402). Once there is a"
    yield "# function for it, write `replace` in place of `refuse`."
    yield f"refuse: {TO_DO}"
    weights = [f"{n}.weight" for n, kind in draft.kinds.items() if kind == "linear"]
    numbers = [n for n, kind in draft.kinds.items() if kind == "parameter"]
    arguments = ", ".join([*draft.inputs, *weights, *numbers])
    yield f"# replace: {', '.join(draft.outputs)} = NF.function({arguments})"
    if weights:
        shards = ", ".join(f"{w.partition('.')[0]}: replicate" for w in weights)
        yield f"# shard: {{{shards}}}  # or column, row, heads"
    shown = draft.inputs[0] if draft.inputs else "y"
    yield "# require:  # conditions without which the function is not right"
    yield f"#   - {shown}.ndim == {len(draft.captured[shown].shape)}"
    yield "# neuron:  # limits of its kernel"
    yield f"#   - {shown}.shape[-1] % 128 == 0"
    yield "# Functions there are (autoport explain NF.mlp tells its arguments):"
    yield from (f"#   {name}" for name in function_names())


def function_names() -> list[str]:
    """All functions of NF and NK, as rules call them."""
    from neuron_autoport import kernels, nf

    names = []
    for space, module in (("NF", nf), ("NK", kernels)):
        functions = [
            n for n in module.__all__ if inspect.isfunction(inspect.unwrap(getattr(module, n)))
        ]
        names += [f"{space}.{n}" for n in functions if _takes_tensors(getattr(module, n))]
    return names


def _takes_tensors(function: Any) -> bool:
    """Is its first argument a tensor? Others ask about the backend or the phase."""
    parameters = list(inspect.signature(inspect.unwrap(function)).parameters.values())
    return bool(parameters) and "Tensor" in str(parameters[0].annotation)


def _plain(text: str) -> str:
    """Text as a YAML item: quoted where YAML would read something else."""
    return json.dumps(text) if ": " in text or text[:1] in "'\"[{&*!|>%@`" else text


def _example(example: ExampleText) -> Iterator[str]:
    shapes = [list(shape) for shape in example.inputs]
    yield f"    - input: {shapes[0] if len(shapes) == 1 else shapes}"
    if example.init:
        yield f"      init: {json.dumps(example.init)}"
    yield "      source: |"
    for line in example.source.rstrip("\n").split("\n"):
        yield f"        {line}" if line.strip() else ""
