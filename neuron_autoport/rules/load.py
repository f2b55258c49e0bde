"""Read rule files (YAML) into `Rule` values; every fault is reported with file, line and column.

Positions come from ruamel.yaml's round-trip loader. All faults of a file are gathered before the error
is raised, so one edit can mend them together.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.check import check_code, check_condition, near
from neuron_autoport.rules.expressions import ExpressionError, parse_expression
from neuron_autoport.rules.load_examples import read_examples
from neuron_autoport.rules.pattern import UNARY, PatternError, Statement, names_in, parse_pattern
from neuron_autoport.rules.places import Places, character
from neuron_autoport.rules.rule import KINDS, SHARDS, Rule, WeightSpec

# Every field and what it must be.
FIELDS: dict[str, type] = {
    "rule": str, "summary": str, "role": str, "match": str, "given": str, "where": dict,
    "require": list, "weights": dict, "replace": str, "shard": dict, "neuron": list, "examples": dict,
}  # fmt: skip
_NEEDED = ("rule", "summary", "match", "replace")
_SAID: dict[type, str] = {str: "text", dict: "a mapping", list: "a list"}
_NEXT = "autoport rules show gated_mlp"


def load_rule(path: Path, content: bytes | None = None) -> Rule:
    """Read one rule file.

    Args:
        content: of the file, if it was read already.

    Raises:
        RuleError: with every fault found, each as `file:line:column: message`.
    """
    raw = path.read_bytes() if content is None else content
    try:
        text = raw.decode("utf-8")
        data = YAML(typ="rt").load(text)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise RuleError("the file is not UTF-8", f"{path}:{line}", _NEXT) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise RuleError(f"not YAML: {error.problem}", place, _NEXT) from None
    except YAMLError as error:
        raise RuleError(f"not YAML: {str(error).splitlines()[0]}", str(path), _NEXT) from None
    return _Reader(path, data, text).read()


class _Reader:
    def __init__(self, path: Path, data: Any, text: str) -> None:
        self.path, self.data, self.text = path, data, text
        self.places = Places(path, text)
        self.faults: list[str] = []
        self.bound = True

    def fault(self, message: str, place: str) -> None:
        self.faults.append(f"{place}: {message}")

    def read(self) -> Rule:
        if not isinstance(self.data, CommentedMap):
            self.fault("a rule file is a mapping that starts with `rule: NAME`", f"{self.path}:1:1")
            self.raise_faults()
        self.check_fields()
        self.raise_faults()
        kinds, choices = self.where()
        modules = {n for n, kind in kinds.items() if kind == "linear"}
        match = self.statements("match", modules, set(choices))
        given = self.statements("given", modules, set(choices))
        names = {n for s in (*match, *given) for n in (*s.targets, *names_in(s.pattern))}
        self.bound = not self.faults  # else names that a wrong pattern binds would be unknown
        weights = self.weights(modules)
        examples = read_examples(self.data, self.places, self.fault)
        rule = Rule(
            name=str(self.data["rule"]),
            summary=str(self.data["summary"]),
            path=self.path,
            match=match,
            given=given,
            replace=self.replacement(modules | {n for s in weights for n in s.names}, names),
            kinds=kinds,
            choices=choices,
            require=self.conditions("require", modules, names),
            neuron=self.conditions("neuron", modules, names | {"tp"}),
            weights=weights,
            shard=self.shard(modules | {n for s in weights for n in s.names}),
            role=str(self.data.get("role", self.data["rule"])),
            examples=examples["matches"],
            rejects=examples["rejects"],
            text=self.text,
        )
        if self.bound:
            self.check_names(rule, names)
        self.raise_faults()
        return rule

    def raise_faults(self) -> None:
        if not self.faults:
            return
        count = "one fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        what = f"rule file has {count}:\n" + "\n".join(self.faults)
        raise RuleError(what, None, _NEXT)

    def check_fields(self) -> None:
        for key, value in self.data.items():
            wanted = FIELDS.get(str(key))
            if wanted is None:
                hint = near(str(key), FIELDS) or f"; fields are {', '.join(FIELDS)}"
                self.fault(f"unknown field `{key}`{hint}", self.places.of_key(self.data, key))
            elif not isinstance(value, wanted):
                place = self.places.of_value(self.data, key)
                self.fault(f"`{key}` must be {_SAID[wanted]}", place)
        for key in (k for k in _NEEDED if k not in self.data):
            self.fault(f"field `{key}` is missing", f"{self.path}:1:1")
        name = self.data.get("rule")
        if isinstance(name, str) and not re.fullmatch(r"[A-Za-z]\w*", name):
            place = self.places.of_value(self.data, "rule")
            self.fault(f"`{name}` is no rule name: letters, digits and _", place)

    def box(self, key: str) -> Any:
        return self.data.get(key) or {}

    def where(self) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        kinds: dict[str, str] = {}
        choices: dict[str, dict[str, str]] = {}
        box = self.box("where")
        for names, kind in box.items():
            for name in (n.strip() for n in str(names).split(",")):
                if isinstance(kind, dict):
                    choices[name] = {str(k): str(v) for k, v in kind.items()}
                elif kind in KINDS:
                    kinds[name] = str(kind)
                else:
                    hint = near(str(kind), KINDS) or f"; kinds: {', '.join(KINDS)}"
                    place = self.places.of_value(box, names)
                    self.fault(f"`{name}` has unknown kind `{kind}`{hint}", place)
            if isinstance(kind, dict):
                self.check_choices(kind)
        return kinds, choices

    def check_choices(self, box: Any) -> None:
        for operation, code in box.items():
            if operation not in UNARY:
                place = self.places.of_key(box, operation)
                self.fault(f"unknown operation `{operation}`{near(str(operation), UNARY)}", place)
            try:
                tree = ast.parse(str(code), mode="eval").body
            except SyntaxError as error:
                place = self.places.of_value(box, operation, 1, error.offset or 1)
                self.fault(f"not an expression: {error.msg}", place)
                continue
            for message, node in check_code(tree, (), ()):
                self.fault(message, self.code_place(box, operation, node))

    def code_place(self, box: Any, key: Any, node: ast.AST) -> str:
        line = getattr(node, "lineno", 1)
        column = character(str(box[key]), line, getattr(node, "col_offset", 0))
        return self.places.of_value(box, key, line, column)

    def statements(self, key: str, modules: set[str], choices: set[str]) -> tuple[Statement, ...]:
        if key not in self.data:
            return ()
        try:
            found = parse_pattern(str(self.data[key]), modules, choices)
        except PatternError as error:
            self.fault(str(error), self.places.of_value(self.data, key, error.line, error.column))
            return ()
        if not found:
            self.fault(
                "expected an equation, `name = expression`", self.places.of_value(self.data, key)
            )
        return found

    def replacement(self, weights: set[str], names: set[str]) -> ast.Assign:
        nothing = ast.Assign(targets=[], value=ast.Constant(None))
        text = str(self.data["replace"])
        try:
            body = ast.parse(text).body
        except SyntaxError as error:
            place = self.places.of_value(self.data, "replace", error.lineno or 1, error.offset or 1)
            self.fault(f"not an equation: {error.msg}", place)
            return nothing
        if len(body) != 1 or not isinstance(body[0], ast.Assign) or not _plain(body[0]):
            place = self.places.of_value(self.data, "replace")
            self.fault("expected one equation, `outputs = NF.function(...)`", place)
            return nothing
        if self.bound:
            for message, node in check_code(body[0].value, weights, names - weights):
                self.fault(message, self.code_place(self.data, "replace", node))
        return body[0]

    def conditions(
        self, key: str, linears: set[str], names: set[str]
    ) -> tuple[tuple[str, ast.Expression], ...]:
        found = []
        box = self.data.get(key) or ()
        for i, item in enumerate(box):
            text = str(item)
            try:
                tree = parse_expression(text)
            except ExpressionError as error:
                self.fault(f"`{text}`: {error}", self.places.of_value(box, i, 1, error.column))
                continue
            found.append((text, tree))
            for message, node in check_condition(tree, linears, names) if self.bound else ():
                self.fault(f"`{text}`: {message}", self.code_place(box, i, node))
        return tuple(found)

    def weights(self, modules: set[str]) -> tuple[WeightSpec, ...]:
        specs = []
        box = self.box("weights")
        for names, how in box.items():
            place = self.places.of_value(box, names)
            targets = tuple(n.strip() for n in str(names).split(","))
            found = re.fullmatch(r"(stack|split)\(([\w, ]+)\)", str(how).strip())
            sources = tuple(s.strip() for s in found[2].split(",")) if found else ()
            one = targets if found and found[1] == "stack" else sources
            if not found or len(one) != 1:
                self.fault(f"`{how}` is not `name: stack(a, b)` or `a, b: split(name)`", place)
                continue
            for source in sources:
                if source not in modules:
                    hint = near(source, modules)
                    self.fault(f"`{source}` is not a captured linear module{hint}", place)
            specs.append(WeightSpec(targets, found[1], sources))
        return tuple(specs)

    def shard(self, weights: set[str]) -> dict[str, str]:
        box = self.box("shard")
        for name, how in box.items():
            if name not in weights:
                place = self.places.of_key(box, name)
                self.fault(f"`{name}` is no weight of this rule{near(str(name), weights)}", place)
            if how not in SHARDS:
                hint = near(str(how), SHARDS) or f"; one of {', '.join(SHARDS)}"
                place = self.places.of_value(box, name)
                self.fault(f"`{name}` is sharded as `{how}`{hint}", place)
        return {str(k): str(v) for k, v in box.items()}

    def check_names(self, rule: Rule, bound: set[str]) -> None:
        """Every declared capture is bound by the pattern, every output is one of `match`."""
        box = self.box("where")
        for names in box:
            for name in (n.strip() for n in str(names).split(",")):
                if name not in bound:
                    place = self.places.of_key(box, names)
                    self.fault(f"`{name}` is declared but the pattern never binds it", place)
        for name in rule.outputs:
            if not any(name in s.targets for s in rule.match):
                place = self.places.of_value(self.data, "replace")
                self.fault(f"`{name}` is given here but no equation of `match` has it", place)


def _plain(assign: ast.Assign) -> bool:
    """Are plain names all that stands left of `=`?"""
    nodes = (n for t in assign.targets for n in ast.walk(t))
    return len(assign.targets) == 1 and all(
        isinstance(n, ast.Name | ast.Tuple | ast.Store) for n in nodes
    )
