"""Read the fields of a rule file that hold code: `replace`, and the conditions.

The code is parsed and checked, never run: a rule file is data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from neuron_autoport.nearest import near
from neuron_autoport.rules.check import check_code, check_condition
from neuron_autoport.rules.expressions import read_expression
from neuron_autoport.rules.load_fields import FieldReader
from neuron_autoport.rules.pattern import Statement
from neuron_autoport.rules.places import character

PHASES = ("prefill", "decode")
TARGETS = ("trn2", "trn3")
_WORD = re.compile(r"(\w+): ")
_SCOPE = re.compile(rf"({'|'.join((*PHASES, *TARGETS))}): *")


class CodeReader(FieldReader):
    """One rule file under way, and what is known of its names.

    bound: is the pattern free of faults? Else names that it binds would seem unknown.
    guessed: names that a wrong pattern seems to bind to values. unclear: names that a fault told already leaves
    without a meaning, so nothing is told of how they are used.
    optional: names that may be None.
    """

    def __init__(self, path: Path, data: Any, text: str) -> None:
        super().__init__(path, data, text)
        self.bound = True
        self.guessed: set[str] = set()
        self.unclear: set[str] = set()
        self.optional: set[str] = set()

    def code_place(self, box: Any, key: Any, node: ast.AST) -> str:
        line = getattr(node, "lineno", 1)
        column = character(str(box[key]), line, getattr(node, "col_offset", 0))
        return self.places.of_value(box, key, line, column)

    def replacements(
        self,
        weights: set[str],
        names: set[str],
        roles: set[str],
        match: tuple[Statement, ...],
    ) -> tuple[ast.Assign, ast.expr | None]:
        """The replacement, and another for decode if the file has one.

        A rule that refuses has none: its outputs are what the pattern names.
        """
        box, key = self.data, "replace"
        if "replace" not in self.data:
            named: list[ast.expr] = [ast.Name(n, ast.Store()) for s in match for n in s.targets]
            return ast.Assign(targets=[ast.Tuple(named)], value=ast.Constant(None)), None
        if isinstance(self.data["replace"], dict):
            box, key = self.data["replace"], "prefill"
            if set(box) != set(PHASES):
                return self.wrong_phases(box, weights, names, roles), None
        first = self.replacement(box, key, weights, names, roles)
        if key == "replace":
            return first, None
        second = self.replacement(box, "decode", weights, names, roles)
        both = first.targets and second.targets  # else that one is wrong is told already
        if both and [ast.dump(t) for t in first.targets] != [ast.dump(t) for t in second.targets]:
            place = self.places.of_value(box, "decode")
            self.fault("`decode` gives other names than `prefill`", place)
        return first, second.value

    def wrong_phases(
        self, box: Any, weights: set[str], names: set[str], roles: set[str]
    ) -> ast.Assign:
        """Tell what is not a phase, and which one is missing; what stands there is checked all the same."""
        if self.unknown_keys(box, PHASES):
            place = self.places.of_value(self.data, "replace")
            self.fault("`replace` has `prefill` and `decode`, or is one equation", place)
        for key in box:
            self.replacement(box, key, weights, names, roles)
        return ast.Assign(targets=[], value=ast.Constant(None))

    def replacement(
        self, box: Any, key: str, weights: set[str], names: set[str], roles: set[str]
    ) -> ast.Assign:
        nothing = ast.Assign(targets=[], value=ast.Constant(None))
        try:
            body = ast.parse(str(box[key])).body
        except SyntaxError as error:
            place = self.places.of_value(box, key, error.lineno or 1, error.offset or 1)
            self.fault(f"not an equation: {error.msg}", place)
            return nothing
        if len(body) != 1 or not isinstance(body[0], ast.Assign) or not _plain(body[0]):
            place = self.places.of_value(box, key)
            self.fault("expected one equation, `outputs = NF.function(...)`", place)
            return nothing
        values, modules = (names - roles) | self.unclear, roles | self.unclear
        for message, node in check_code(body[0].value, weights, values, modules):
            self.fault(message, self.code_place(box, key, node))
        return body[0]

    def conditions(
        self, key: str, linears: set[str], names: set[str], roles: Collection[str] = ()
    ) -> tuple[tuple[str, ast.Expression], ...]:
        """The conditions of a field; those of `neuron` may begin with a phase or a target."""
        found = []
        box = self.data.get(key) or ()
        for i, item in enumerate(box):
            if not isinstance(item, str):
                said = " in quotes, as a `: ` is in it" if isinstance(item, dict) else ""
                self.fault(f"a condition must be text{said}", self.places.of_value(box, i))
                continue
            text = str(item)
            scope = _SCOPE.match(text) if key == "neuron" else None
            start = scope.end() if scope is not None else 0
            word = _WORD.match(text) if scope is None else None
            if word is not None:
                self.fault(self.no_scope(key, word[1]), self.places.of_value(box, i))
                continue
            tree, faults = read_expression(text[start:])
            for error in faults:
                place = self.places.of_value(box, i, 1, start + error.column)
                self.fault(f"`{text}`: {error}", place)
            if tree is None:
                continue
            found.append((text, tree))
            known, modules = {*names, *self.unclear}, {*roles, *self.unclear}
            for message, node in check_condition(tree, linears, known, modules):
                column = character(text[start:], 1, getattr(node, "col_offset", 0)) + start
                self.fault(f"`{text}`: {message}", self.places.of_value(box, i, 1, column))
        return tuple(found)

    def no_scope(self, key: str, word: str) -> str:
        """Tell of a condition that begins with a word of its own."""
        if key != "neuron":
            return f"`{word}:` is for conditions of `neuron`; what `{key}` has counts always"
        known = (*PHASES, *TARGETS)
        hint = near(word, known) or f"; there are {', '.join(known)}"
        return f"`{word}` is no phase or target{hint}"


def scope_of(text: str) -> str | None:
    """The phase or target that a `neuron` condition is meant for; None if it always counts."""
    found = _SCOPE.match(text)
    return found[1] if found is not None else None


def _plain(assign: ast.Assign) -> bool:
    """Are plain names all that stands left of `=`?"""
    nodes = (n for t in assign.targets for n in ast.walk(t))
    return len(assign.targets) == 1 and all(
        isinstance(n, ast.Name | ast.Tuple | ast.Store) for n in nodes
    )
