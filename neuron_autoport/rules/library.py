"""Where rules come from: the built-in folder `patterns/`, and folders of the user's own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.rule import Rule


def builtin_folder() -> Path:
    """`patterns/` inside the installed package, or beside it in a source checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "patterns"
    return inside if inside.is_dir() else package.parent / "patterns"


def _load_folder(folder: Path) -> tuple[Rule, ...]:
    return tuple(_load(p, p.read_bytes()) for p in sorted(folder.rglob("*.yaml")))


@lru_cache(maxsize=512)
def _load(path: Path, content: bytes) -> Rule:
    """Read once for each content: an edited file is read anew."""
    return load_rule(path, content)


def user_folders() -> tuple[Path, ...]:
    """Rule folders of the environment variable `AUTOPORT_RULES`, separated as in `PATH`.

    The way for processes that take no `--rules` option, such as `vllm serve`.
    """
    listed = os.environ.get("AUTOPORT_RULES", "")
    return tuple(Path(part) for part in listed.split(os.pathsep) if part)


def load_rules(folders: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """The built-in rules and those of `folders`; a later rule of the same name replaces.

    Raises:
        RuleError: a folder does not exist, or a file in it is wrong.
    """
    rules = {rule.name: rule for rule in _load_folder(builtin_folder())}
    for folder in folders:
        if not folder.is_dir():
            raise RuleError(
                f"rule folder {folder} does not exist", str(folder), "ls " + str(folder.parent)
            )
        rules.update({rule.name: rule for rule in _load_folder(folder)})
    return tuple(rules[name] for name in sorted(rules))


def rules_at(path: Path) -> tuple[Rule, ...]:
    """The rules of one file, or of all files below a folder.

    Raises:
        RuleError: there are none, or a file is wrong.
    """
    if path.is_file():
        return (_load(path, path.read_bytes()),)
    found = _load_folder(path)
    if not found:
        what = f"no rule files (*.yaml) in {path}" if path.is_dir() else f"{path} does not exist"
        raise RuleError(what, str(path), "autoport rules list shows the files of all rules")
    return found


def is_builtin(rule: Rule) -> bool:
    """Does the rule come with this package?"""
    return rule.path.resolve().is_relative_to(builtin_folder().resolve())


def rules_digest(rules: Iterable[Rule]) -> str:
    """A hash of the text of all rules: part of the key of a proof."""
    digest = hashlib.sha256()
    for rule in rules:
        digest.update(rule.text.encode())
    return digest.hexdigest()[:16]
