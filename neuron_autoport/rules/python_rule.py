"""Rules in Python, for conditions that the expression language cannot say.

A file `NAME.py` in a folder of rules is a rule if it has `RULE = \"\"\"...\"\"\"`, the text of a rule file, and

    def check(found) -> str | None: ...

which gets the captures as conditions see them (`found.x.shape`, `found.gate.out_features`) and returns why
the match may not be used, or None. Reading the file runs nothing of it; `check` runs only if that was allowed.
"""

from __future__ import annotations

import ast
import hashlib
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from neuron_autoport.errors import RuleError
from neuron_autoport.models.python_file import import_file
from neuron_autoport.rules.conditions import facts_of
from neuron_autoport.rules.match import Match
from neuron_autoport.rules.plain import load_plain_rule
from neuron_autoport.rules.rule import Rule

_NAME, _FUNCTION = "RULE", "check"
_RULE_LINE = re.compile(rf"^{_NAME}\s*=".encode(), re.MULTILINE)
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class PythonCheck:
    """The function `check` of a rule's file, at `line`. trusted: it may run."""

    path: Path
    content: bytes
    line: int
    trusted: bool = False

    def __call__(self, match: Match) -> str | None:
        """Why the match may not be used, or None.

        Raises:
            RuleError: the code may not run, fails, or returns something else.
        """
        place = f"{self.path}:{self.line}"
        if not self.trusted:
            what = f"{self.path.name} is a rule in Python, which is not run unless you allow it"
            step = "read it, then repeat the command with --trust-remote-code"
            raise RuleError(what, place, step)
        try:
            said = self.function()(SimpleNamespace(**facts_of(match)))
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            what = f"`{_FUNCTION}` of a rule failed: {type(error).__name__}: {error}"
            raise RuleError(what, self.place_of(error), f"mend {self.path}") from error
        if said is not None and not isinstance(said, str):
            what = f"`{_FUNCTION}` of a rule returned {said!r}: text, or None, was expected"
            raise RuleError(what, place, f"mend {self.path}")
        return said

    def place_of(self, error: BaseException) -> str:
        """Where in the file an error was raised, or what raised it called; of a file not yet run, where `check` is."""
        if isinstance(error, SyntaxError):
            return f"{error.filename or self.path}:{error.lineno or 1}:{error.offset or 1}"
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if Path(f.filename) in (self.path, self.path.resolve())]
        if not own:
            return f"{self.path}:{self.line}"
        column = getattr(own[-1], "colno", None)
        return f"{self.path}:{own[-1].lineno}" + (f":{column + 1}" if column is not None else "")

    def function(self) -> Callable[[Any], Any]:
        """The function itself; the file is run once for each content."""
        digest = hashlib.sha256(self.content).hexdigest()[:16]
        module = import_file(f"autoport_rule_{self.path.stem}_{digest}", self.path)
        found: Callable[[Any], Any] = getattr(module, _FUNCTION)
        return found


def is_python_rule(content: bytes) -> bool:
    """Does a Python file hold a rule, be it one that cannot be read? Other modules may lie in a folder of rules."""
    try:
        return _parts(content)[0] is not None
    except _UNREADABLE:
        return _RULE_LINE.search(content) is not None


def load_python_rule(path: Path, content: bytes) -> Rule:
    """Read a rule in Python; nothing of it runs.

    Raises:
        RuleError: it is wrong; positions are those of the Python file.
    """
    try:
        text, function = _parts(content)
    except SyntaxError as error:
        place = f"{path}:{error.lineno or 1}:{error.offset or 1}"
        raise RuleError(f"not Python: {error.msg}", place, f"mend {path}") from None
    except _UNREADABLE as error:
        what = f"not Python: {str(error) or 'nested too deeply'}"
        raise RuleError(what, str(path), f"mend {path}") from None
    if text is None:
        raise RuleError(
            f"there is no rule in it: {_NAME} = text is missing", str(path), _step(path)
        )
    if function is None:
        what = f"a rule in Python defines `{_FUNCTION}(found)`; without one, YAML says it all"
        raise RuleError(what, f"{path}:{text.lineno}", _step(path))
    # As many empty lines before the text as the file has: faults are then told at its own lines.
    padded = "\n" * (text.lineno - 1) + str(text.value)
    rule = load_plain_rule(path, padded.encode())
    check = PythonCheck(path, content, function.lineno)
    return replace(rule, text=content.decode(), check=check)


def trusted(rule: Rule) -> Rule:
    """The rule, its Python code allowed to run."""
    if not isinstance(rule.check, PythonCheck):
        return rule
    return replace(rule, check=replace(rule.check, trusted=True))


def _parts(content: bytes) -> tuple[ast.Constant | None, ast.FunctionDef | None]:
    """The text of the rule and the function, as far as the file has them.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the file is not Python.
    """
    tree = ast.parse(content)
    text, function = None, None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == _FUNCTION:
            function = node
        named = isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == _NAME for t in node.targets
        )
        if named and isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            text = node.value if isinstance(node.value.value, str) else None
    return text, function


def _step(path: Path) -> str:
    return f'write {_NAME} = """rule: {path.stem} ...""" and def {_FUNCTION}(found)'
