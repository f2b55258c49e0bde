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
from ruamel.yaml.reader import ReaderError

from neuron_autoport.errors import RuleError
from neuron_autoport.nearest import near
from neuron_autoport.rules.check import check_code
from neuron_autoport.rules.load_code import CodeReader
from neuron_autoport.rules.load_examples import read_examples
from neuron_autoport.rules.load_fields import NEXT
from neuron_autoport.rules.parse import PatternError, parse_pattern, words_of
from neuron_autoport.rules.pattern import OPERATIONS, UNARY, Statement, absent_names, names_in
from neuron_autoport.rules.rule import KINDS, SHARDS, Rule, WeightSpec

_ALL_KINDS = ", ".join(KINDS)


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
        before = raw[: error.start].decode("utf-8").split("\n")
        place = f"{path}:{len(before)}:{len(before[-1]) + 1}"
        what = "the file is not UTF-8 text, as a rule file has to be"
        raise RuleError(what, place, NEXT) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        # `but found another document` goes on from what was expected.
        goes_on = str(error.problem).startswith("but ")
        said = f"{error.context}, {error.problem}" if goes_on else error.problem
        raise RuleError(f"not YAML: {said}", place, NEXT) from None
    except ReaderError as error:
        before = text[: error.position].split("\n")
        place = f"{path}:{len(before)}:{len(before[-1]) + 1}"
        what = f"not YAML: the character U+{error.character:04X} is not allowed"
        raise RuleError(what, place, NEXT) from None
    except YAMLError as error:
        raise RuleError(f"not YAML: {str(error).splitlines()[0]}", str(path), NEXT) from None
    return _Reader(path, data, text).read()


class _Reader(CodeReader):
    def read(self) -> Rule:
        if not isinstance(self.data, CommentedMap):
            self.fault("a rule file is a mapping that starts with `rule: NAME`", f"{self.path}:1:1")
            self.raise_faults()
        wrong = self.check_fields()
        kinds, choices = self.where()
        if "where" in wrong:  # nobody knows what was declared
            self.unclear |= self.called() - OPERATIONS
        linears = {n for n, kind in kinds.items() if kind == "linear"}
        roles = {n for n, kind in kinds.items() if kind not in KINDS}
        modules = linears | roles | self.unclear
        match = self.statements("match", modules, set(choices))
        given = self.statements("given", modules, set(choices))
        if "match" in wrong:
            self.bound = False
            self.unclear |= set(re.findall(r"\w+", self.text))
        names = {n for s in (*match, *given) for n in (*s.targets, *names_in(s.pattern))}
        names |= self.guessed
        if not self.bound:
            names |= kinds.keys() | choices.keys()
        self.optional = {n for s in (*match, *given) for n in absent_names(s.pattern)}
        weights = self.weights(linears, {n for s in match if s.cut for n in s.targets})
        stored = linears | {n for s in weights for n in s.names}
        replace, decode = self.replacements(stored, names - stored, roles, match)
        examples = read_examples(self.data, self.places, self.fault)
        rule = Rule(
            name=str(self.data.get("rule", "")),
            summary=str(self.data.get("summary", "")),
            path=self.path,
            match=match,
            given=given,
            replace=replace,
            decode=decode,
            refuse=str(self.data.get("refuse", "")),
            kinds=kinds,
            choices=choices,
            require=self.conditions("require", linears, names, roles),
            neuron=self.conditions("neuron", linears, names | {"tp"}, roles),
            weights=weights,
            shard=self.shard(stored),
            role=str(self.data.get("role", self.data.get("rule", ""))),
            examples=examples["matches"],
            rejects=examples["rejects"],
            text=self.text,
        )
        self.check_names(rule, names)
        self.raise_faults()
        return rule

    def where(self) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        kinds: dict[str, str] = {}
        choices: dict[str, dict[str, str]] = {}
        box = self.box("where")
        for names, kind in box.items():
            for name in _listed(names):
                if isinstance(kind, dict):
                    choices[name] = {str(k): str(v) for k, v in kind.items()}
                elif isinstance(kind, str) and ("|" in kind or kind in UNARY):
                    choices[name] = self.plain_choices(box, names)
                elif kind in KINDS or (isinstance(kind, str) and _is_role(kind)):
                    kinds[name] = str(kind)
                else:
                    self.wrong_kind(box, names, name, kinds)
            if isinstance(kind, dict):
                self.check_choices(kind)
        return kinds, choices

    def wrong_kind(self, box: Any, names: Any, name: str, kinds: dict[str, str]) -> None:
        """Tell it; and read on with the kind that was meant, if there is a nearest one."""
        kind, place = box[names], self.places.of_value(box, names)
        hint = near(str(kind), KINDS) if kind is not None else ""
        said = "no kind" if kind is None else f"unknown kind `{kind}`"
        self.fault(f"`{name}` has {said}{hint or f'; kinds: {_ALL_KINDS}'}", place)
        if hint:
            kinds[name] = hint.split("`")[1]
        else:
            self.unclear.add(name)

    def called(self) -> set[str]:
        """Names that the pattern calls."""
        texts = (str(self.data.get(key, "")) for key in ("match", "given"))
        return set().union(*(words_of(text)[1] for text in texts))

    def plain_choices(self, box: Any, key: Any) -> dict[str, str]:
        """`silu | gelu`: each operation stands in the replacement as its name, a text."""
        text = str(box[key])
        words = list(re.finditer(r"\w+", text))
        for word in words:
            if word[0] not in UNARY:
                place = self.places.of_value(box, key, 1, word.start() + 1)
                self.fault(f"unknown operation `{word[0]}`{near(word[0], UNARY)}", place)
        return {word[0]: repr(word[0]) for word in words}

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

    def statements(self, key: str, modules: set[str], choices: set[str]) -> tuple[Statement, ...]:
        if key not in self.data:
            return ()
        try:
            found = parse_pattern(str(self.data[key]), modules, choices)
        except PatternError as error:
            for fault in error.all:
                place = self.places.of_value(self.data, key, fault.line, fault.column)
                self.fault(str(fault), place)
            self.bound = False
            plain, called = words_of(str(self.data[key]))
            self.guessed |= plain
            self.unclear |= called - modules - choices
            return ()
        if not found:
            self.bound = False
            self.fault(
                "expected an equation, `name = expression`", self.places.of_value(self.data, key)
            )
        return found

    def weights(self, modules: set[str], cut: set[str]) -> tuple[WeightSpec, ...]:
        """The weights made of others; `stack` also takes outputs of `cut(...)`: their columns."""
        specs = []
        box = self.box("weights")
        for names, how in box.items():
            place = self.places.of_value(box, names)
            targets = tuple(_listed(names))
            found = re.fullmatch(r"(stack|split)\(([\w, ]+)\)", str(how).strip())
            sources = tuple(s.strip() for s in found[2].split(",")) if found else ()
            one = targets if found and found[1] == "stack" else sources
            if not found or len(one) != 1:
                self.fault(f"`{how}` is not `name: stack(a, b)` or `a, b: split(name)`", place)
                self.unclear |= set(targets)
                continue
            known = modules | cut if found[1] == "stack" else modules
            for source in sources:
                if source not in known | self.unclear:
                    hint = near(source, known)
                    self.fault(f"`{source}` is not a captured linear module{hint}", place)
            specs.append(WeightSpec(targets, found[1], sources))
        return tuple(specs)

    def shard(self, weights: set[str]) -> dict[str, str]:
        box = self.box("shard")
        for name, how in box.items():
            if name not in weights | self.unclear:
                place = self.places.of_key(box, name)
                hint = near(str(name), weights | self.unclear)
                self.fault(f"`{name}` is no weight of this rule{hint}", place)
            if how not in SHARDS:
                hint = near(str(how), SHARDS) or f"; one of {', '.join(SHARDS)}"
                place = self.places.of_value(box, name)
                self.fault(f"`{name}` is sharded as `{how}`{hint}", place)
        return {str(k): str(v) for k, v in box.items()}

    def check_names(self, rule: Rule, bound: set[str]) -> None:
        """Every declared capture is bound by the pattern, every output is one of `match`.

        What a wrong pattern binds is not known, so nothing is told of it.
        """
        box = self.box("where") if self.bound else {}
        for names in box:
            for name in _listed(names):
                if name not in bound:
                    place = self.places.of_key(box, names)
                    self.fault(f"`{name}` is declared but the pattern never binds it", place)
        for name in rule.outputs if "replace" in self.data and rule.match else ():
            if not any(name in s.targets for s in rule.match):
                place = self.places.of_value(self.data, "replace")
                self.fault(f"`{name}` is given here but no equation of `match` has it", place)


def _listed(names: Any) -> list[str]:
    """The names of a key such as `gate, up`."""
    return [name.strip() for name in str(names).split(",")]


def _is_role(kind: str) -> bool:
    """May the word be a role? The library knows all roles; a misspelled kind is told here."""
    return re.fullmatch(r"[A-Za-z]\w*", kind) is not None and not near(kind, KINDS)
