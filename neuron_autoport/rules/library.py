"""Folders of rule files: the built-in `patterns/`, and any other. `sources.py` says which ones count."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.builtin import builtin_folder, is_builtin
from neuron_autoport.rules.check_roles import check_roles, lacking
from neuron_autoport.rules.plain import load_plain_rule
from neuron_autoport.rules.python_rule import is_python_rule, load_python_rule, trusted
from neuron_autoport.rules.rule import Rule


def folder_rules(folder: Path, where: str | None = None) -> tuple[Rule, ...]:
    """The rules of all files below a folder.

    Args:
        where: the place that names the folder, for the error.

    Raises:
        RuleError: there is no such folder, files in it are wrong (all are named), or two have a rule of one name.
    """
    if not folder.is_dir():
        place = f"{folder}, named by {where}" if where else str(folder)
        if folder.exists():
            raise RuleError(
                f"{folder} is a file, not a folder of rules", place, f"name {folder.parent}"
            )
        raise RuleError(f"rule folder {folder} does not exist", place, f"ls {folder.parent}")
    rules: dict[str, Rule] = {}
    faults: list[RuleError] = []
    for path in sorted((*folder.rglob("*.yaml"), *_python_rules(folder))):
        try:
            rule = _load(path, read(path))
        except RuleError as error:
            faults.append(error)
            continue
        known = rules.setdefault(rule.name, rule)
        if known is not rule:
            what = f"two files of one folder have a rule `{rule.name}`"
            step = f"rename one of them, or remove {path}"
            faults.append(RuleError(what, f"{known.path} and {path}", step))
    for path in sorted(folder.rglob("*.yml")):
        step = f"mv {path} {path.with_suffix('.yaml')}"
        faults.append(RuleError("the name of a rule file ends in .yaml", str(path), step))
    _raise_all(faults, folder)
    return tuple(rules.values())


def _raise_all(faults: list[RuleError], folder: Path) -> None:
    """Tell what is wrong with files of a folder, all of it."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        told = "\n".join(f.what + (f" ({f.where})" if f.where else "") for f in faults)
        what = f"{len(faults)} rule files are wrong.\n{told}"
        raise RuleError(what, str(folder), faults[0].next_step)


def rules_beside(path: Path, known: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules of the files right beside `path` that give a role which `known`, or one of them, asks for and lacks.

    Other files of that folder are left alone, whatever they are.

    Raises:
        RuleError: a role is still lacking, and a rule file beside is wrong: it may be the one that gives it.
    """
    known, found = tuple(known), dict[str, Rule]()
    others, faults = _others(path) if lacking(known) else ({}, [])
    while missing := lacking((*known, *found.values())):
        new = {n: r for n, r in others.items() if r.role in missing and n not in found}
        if not new:
            _raise_all(faults, path.parent)
            break
        found |= new
    return tuple(found.values())


def _others(path: Path) -> tuple[dict[str, Rule], list[RuleError]]:
    """The rules of the files beside one by name, and what is wrong with rule files there."""
    rules: dict[str, Rule] = {}
    faults: list[RuleError] = []
    for other in sorted(path.parent.glob("*.yaml")):
        content = read(other) if other.is_file() and not other.samefile(path) else b""
        if not re.search(rb"^rule:", content, re.MULTILINE):
            continue
        try:
            rule = _load(other, content)
        except RuleError as error:
            faults.append(error)
        else:
            rules.setdefault(rule.name, rule)
    return rules, faults


def read(path: Path) -> bytes:
    """The content of a rule file.

    Raises:
        RuleError: it cannot be read, or is a folder.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise RuleError(f"cannot be read: {error.strerror}", str(path), f"ls -l {path}") from None


@lru_cache(maxsize=512)
def _load(path: Path, content: bytes) -> Rule:
    """Read once for each content: an edited file is read anew."""
    load = load_python_rule if path.suffix == ".py" else load_plain_rule
    return load(path, content)


def _python_rules(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.py") if is_python_rule(read(path))]


def load_rules(folders: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """The built-in rules and those of `folders`; a later rule of the same name replaces.

    Raises:
        RuleError: a folder does not exist, or a file in it is wrong.
    """
    rules: dict[str, Rule] = {}
    for folder in (builtin_folder(), *folders):
        rules.update({rule.name: rule for rule in folder_rules(folder)})
    rules.update({name: trusted(rule) for name, rule in rules.items() if is_builtin(rule)})
    check_roles(rules.values())
    return tuple(rules[name] for name in sorted(rules))


def rules_at(path: Path) -> tuple[Rule, ...]:
    """The rules of one file, or of all files below a folder.

    Raises:
        RuleError: there are none, or a file is wrong.
    """
    if path.is_file():
        return (_load(path, read(path)),)
    found = folder_rules(path) if path.is_dir() else ()
    if not found:
        what = f"no rule files (*.yaml) in {path}" if path.is_dir() else f"{path} does not exist"
        raise RuleError(what, str(path), "autoport rules list shows the files of all rules")
    return found


def rules_digest(rules: Iterable[Rule]) -> str:
    """A hash of the text of all rules: part of the key of a proof."""
    digest = hashlib.sha256()
    for rule in rules:
        digest.update(rule.text.encode())
    return digest.hexdigest()[:16]
