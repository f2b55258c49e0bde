"""Read rule files (YAML) into `Rule` values; every fault is reported with file, line and column.

Positions come from ruamel.yaml's round-trip loader. All faults of a file are gathered before the error
is raised, so one edit can mend them together.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.expressions import ExpressionError, parse_expression
from neuron_autoport.rules.pattern import PatternError, Statement, names_in, parse_pattern
from neuron_autoport.rules.rule import KINDS, SHARDS, Example, Rule, WeightSpec

FIELDS = ("rule", "summary", "role", "match", "given", "where", "require", "weights", "replace",
          "shard", "neuron", "examples")  # fmt: skip
_NEEDED = ("rule", "summary", "match", "replace")


def load_rule(path: Path) -> Rule:
    """Read one rule file.

    Raises:
        RuleError: with every fault found, each as `file:line:column: message`.
    """
    text = path.read_text(encoding="utf-8")
    try:
        data = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise RuleError(f"not YAML: {error.problem}", place, "autoport rules show gated_mlp") from None
    return _Reader(path, data, text).read()


class _Reader:
    def __init__(self, path: Path, data: Any, text: str) -> None:
        self.path, self.data, self.text = path, data, text
        self.faults: list[str] = []

    def fault(self, message: str, key: str | None = None, line: int = 0, column: int = 0) -> None:
        """Note a fault at a field, or at a line and column inside its text."""
        row, col = (0, 0)
        if key is not None and isinstance(self.data, CommentedMap) and key in self.data:
            row, col = self.data.lc.value(key) if key in self.data.lc.data else (0, 0)
            block = str(self.text.splitlines()[row][col : col + 1]) in "|>"
            row, col = (row + line, 1 + column) if block else (row, col + max(column - 1, 0))
        self.faults.append(f"{self.path}:{row + 1}:{col + 1}: {message}")

    def read(self) -> Rule:
        if not isinstance(self.data, CommentedMap):
            self.fault("a rule file is a mapping that starts with `rule: NAME`")
            self.raise_faults()
        self.check_fields()
        kinds, choices = self.where()
        modules = {n for n, kind in kinds.items() if kind == "linear"}
        match = self.statements("match", modules, set(choices))
        given = self.statements("given", modules, set(choices))
        weights = self.weights(modules)
        rule = Rule(
            name=str(self.data["rule"]),
            summary=str(self.data["summary"]),
            path=self.path,
            match=match,
            given=given,
            replace=self.replacement(),
            kinds=kinds,
            choices=choices,
            require=self.conditions("require"),
            neuron=self.conditions("neuron"),
            weights=weights,
            shard=self.shard(),
            role=str(self.data.get("role", self.data["rule"])),
            examples=self.examples("matches"),
            rejects=self.examples("rejects"),
            text=self.text,
        )
        self.check_names(rule)
        self.raise_faults()
        return rule

    def raise_faults(self) -> None:
        if not self.faults:
            return
        count = "one fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        what = f"rule file has {count}:\n" + "\n".join(self.faults)
        raise RuleError(what, None, "autoport rules show gated_mlp")

    def check_fields(self) -> None:
        for key in self.data:
            if key not in FIELDS:
                near = difflib.get_close_matches(str(key), FIELDS, 1)
                hint = f"; did you mean `{near[0]}`?" if near else f"; fields are {', '.join(FIELDS)}"
                row, col = self.data.lc.key(key)
                self.faults.append(f"{self.path}:{row + 1}:{col + 1}: unknown field `{key}`{hint}")
        missing = [key for key in _NEEDED if key not in self.data]
        for key in missing:
            self.fault(f"field `{key}` is missing")
        if missing:
            self.raise_faults()

    def where(self) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        kinds: dict[str, str] = {}
        choices: dict[str, dict[str, str]] = {}
        for names, kind in (self.data.get("where") or {}).items():
            for name in (n.strip() for n in str(names).split(",")):
                if isinstance(kind, dict):
                    choices[name] = {str(k): str(v) for k, v in kind.items()}
                elif kind in KINDS:
                    kinds[name] = str(kind)
                else:
                    near = difflib.get_close_matches(str(kind), KINDS, 1)
                    hint = f"; did you mean `{near[0]}`?" if near else f"; kinds: {', '.join(KINDS)}"
                    self.fault(f"`{name}` has unknown kind `{kind}`{hint}", "where")
        return kinds, choices

    def statements(self, key: str, modules: set[str], choices: set[str]) -> tuple[Statement, ...]:
        if key not in self.data:
            return ()
        try:
            return parse_pattern(str(self.data[key]), modules, choices)
        except PatternError as error:
            self.fault(str(error), key, error.line, error.column)
            return ()

    def replacement(self) -> ast.Assign:
        nothing = ast.Assign(targets=[], value=ast.Constant(None))
        try:
            body = ast.parse(str(self.data["replace"])).body
        except SyntaxError as error:
            self.fault(f"not an equation: {error.msg}", "replace", error.lineno or 1, error.offset or 1)
            return nothing
        if len(body) != 1 or not isinstance(body[0], ast.Assign):
            self.fault("expected one equation, `outputs = NF.function(...)`", "replace")
            return nothing
        for node in ast.walk(body[0]):
            if isinstance(node, ast.Call):
                self.check_call(node)
        return body[0]

    def check_call(self, node: ast.Call) -> None:
        """The function must exist and take these arguments."""
        from neuron_autoport import kernels, nf

        function = node.func
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
            return
        space = {"NF": nf, "NK": kernels}.get(function.value.id)
        if space is None:
            return
        known = getattr(space, function.attr, None)
        if known is None:
            near = difflib.get_close_matches(function.attr, dir(space), 1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            self.fault(f"{function.value.id} has no `{function.attr}`{hint}", "replace",
                       node.lineno, node.col_offset + 1)  # fmt: skip
            return
        try:
            signature = inspect.signature(known)
            keywords = {k.arg: None for k in node.keywords if k.arg}
            signature.bind(*node.args, **keywords)
        except TypeError as error:
            call = f"{function.value.id}.{function.attr}"
            self.fault(f"{call}: {error}", "replace", node.lineno, node.col_offset + 1)

    def conditions(self, key: str) -> tuple[tuple[str, ast.Expression], ...]:
        found = []
        for text in self.data.get(key) or ():
            try:
                found.append((str(text), parse_expression(str(text))))
            except ExpressionError as error:
                self.fault(f"`{text}`: {error}", key)
        return tuple(found)

    def weights(self, modules: set[str]) -> tuple[WeightSpec, ...]:
        specs = []
        for names, how in (self.data.get("weights") or {}).items():
            found = re.fullmatch(r"(stack|split)\(([\w, ]+)\)", str(how).strip())
            if not found:
                self.fault(f"`{how}` is not `stack(a, b)` or `split(a)`", "weights")
                continue
            sources = tuple(s.strip() for s in found[2].split(","))
            for source in sources:
                if source not in modules:
                    self.fault(f"`{source}` is not a captured linear module", "weights")
            targets = tuple(n.strip() for n in str(names).split(","))
            specs.append(WeightSpec(targets, found[1], sources))
        return tuple(specs)

    def shard(self) -> dict[str, str]:
        plan = {str(k): str(v) for k, v in (self.data.get("shard") or {}).items()}
        for name, how in plan.items():
            if how not in SHARDS:
                near = difflib.get_close_matches(how, SHARDS, 1)
                hint = f"; did you mean `{near[0]}`?" if near else f"; one of {', '.join(SHARDS)}"
                self.fault(f"`{name}` is sharded as `{how}`{hint}", "shard")
        return plan

    def examples(self, key: str) -> tuple[Example, ...]:
        found = []
        for item in (self.data.get("examples") or {}).get(key) or ():
            shape = tuple(int(n) for n in item.get("input", (2, 5, 16)))
            found.append(Example(str(item["source"]), shape, item.get("because")))
        return tuple(found)

    def check_names(self, rule: Rule) -> None:
        """Every capture is bound by the pattern, every output is given by the replacement."""
        bound = rule.named
        for statement in (*rule.match, *rule.given):
            bound = bound | names_in(statement.pattern)
        declared = set(rule.kinds) | set(rule.choices)
        for name in sorted(declared - bound):
            self.fault(f"`{name}` is declared but the pattern never binds it", "where")
        weights = {n for spec in rule.weights for n in spec.names}
        known = bound | weights | {"NF", "NK"}
        for node in ast.walk(rule.replace.value):
            if isinstance(node, ast.Name) and node.id not in known:
                near = difflib.get_close_matches(node.id, sorted(known), 1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                self.fault(f"`{node.id}` is bound by nothing{hint}", "replace", node.lineno,
                           node.col_offset + 1)  # fmt: skip
        for name in rule.outputs:
            if not any(name in s.targets for s in rule.match):
                self.fault(f"`{name}` is given here but no equation of `match` has it", "replace")
