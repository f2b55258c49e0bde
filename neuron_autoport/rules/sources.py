"""Where rules come from, in this order; of two rules of one name the later one counts.

1. the built-in folder `patterns/`
2. installed packages: entry points of the group `neuron_autoport.rules`, by name. The value is a package; rules
   are the rule files in its folder. The package is looked up, never imported.
3. `rules = [...]` under `[tool.autoport]` in the nearest pyproject.toml, the working folder's or one above it,
   that has such a table; paths are relative to that file
4. the environment variable AUTOPORT_RULES: folders, separated as in PATH
5. `--rules DIR` of a command

Each folder is searched through to the bottom, for `*.yaml` and for rules in Python
(`python_rule.py`). A place that names what is not there is an error.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from neuron_autoport.errors import RuleError
from neuron_autoport.nearest import near
from neuron_autoport.rules.builtin import builtin_folder, is_builtin
from neuron_autoport.rules.check_roles import check_roles
from neuron_autoport.rules.library import folder_rules
from neuron_autoport.rules.python_rule import trusted
from neuron_autoport.rules.rule import Rule

GROUP = "neuron_autoport.rules"
VARIABLE = "AUTOPORT_RULES"
OPTION = "--rules"
TABLE_KEYS = ("rules",)


@dataclass(frozen=True)
class RuleSource:
    """A folder of rules. name: what brought it in, as reports say it. where: the place that names it.

    installed: it is part of a package, whose code the user chose to have.
    """

    name: str
    folder: Path
    where: str
    installed: bool = False


def load_library(
    options: Iterable[Path] = (), *, written_to: Path | None = None, trust_code: bool = False
) -> tuple[Rule, ...]:
    """All rules that apply here, sorted by name.

    Args:
        options: folders of `--rules`. written_to: a folder that may still be empty or missing, as the
            command is about to put the first rule there.
        trust_code: Python code of rules may run; of built-in rules and installed packages it always may.

    Raises:
        RuleError: a folder, package or file is not there or wrong.
    """
    rules: dict[str, Rule] = {}
    for source in rule_sources(options):
        new = written_to is not None and source.folder.resolve() == written_to.resolve()
        if new and not any(source.folder.rglob("*.y*")):
            continue
        found = folder_rules(source.folder, source.where)
        if not found:
            where = f"{source.folder}, named by {source.where}"
            step = f"autoport rules new NAME --from MODEL -o {source.folder}"
            raise RuleError(f"no rule files (*.yaml) in {source.folder}", where, step)
        if trust_code or source.installed:
            found = tuple(trusted(rule) for rule in found)
        rules.update({rule.name: rule for rule in found})
    check_roles(rules.values())
    return tuple(rules[name] for name in sorted(rules))


def rule_sources(options: Iterable[Path] = ()) -> tuple[RuleSource, ...]:
    """All folders of rules, the first that counts least first."""
    return (
        RuleSource("built in", builtin_folder(), "neuron-autoport", True),
        *_packages(),
        *_project(),
        *_environment(),
        *(RuleSource(OPTION, Path(folder), OPTION) for folder in options),
    )


def origin_of(rule: Rule) -> str:
    """What brought a rule in: `built in`, `package NAME`, a pyproject.toml, AUTOPORT_RULES or --rules."""
    if is_builtin(rule):
        return "built in"
    path = rule.path.resolve()
    names = [s.name for s in rule_sources() if path.is_relative_to(s.folder.resolve())]
    return names[-1] if names else OPTION


def replaces_builtin(rule: Rule) -> bool:
    """Does a rule of the user's stand in for a built-in one of its name?"""
    return not is_builtin(rule) and any(r.name == rule.name for r in folder_rules(builtin_folder()))


def _environment() -> Iterator[RuleSource]:
    listed = os.environ.get(VARIABLE, "")
    for part in listed.split(os.pathsep):
        if part:
            yield RuleSource(VARIABLE, Path(part).expanduser(), VARIABLE)


# pyproject.toml


def _project() -> Iterator[RuleSource]:
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _table(file)
            if table is not None:
                yield from _folders(file, table)
                return


def _table(file: Path) -> dict[str, Any] | None:
    """`[tool.autoport]`, or None if the file has no such table."""
    step = f"mend {file}"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{file}:{found[1]}:{found[2]}" if found else str(file)
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise RuleError(f"pyproject.toml is not TOML: {message}", where, step) from None
    except UnicodeDecodeError:
        raise RuleError("pyproject.toml is not UTF-8", str(file), step) from None
    tool = content.get("tool")
    table = tool.get("autoport") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise RuleError("`tool.autoport` must be a table", _line_of(file, "autoport"), step)
    return table


def _folders(file: Path, table: dict[str, Any]) -> Iterator[RuleSource]:
    for key in table:
        if key not in TABLE_KEYS:
            what = f"unknown key `{key}` of [tool.autoport]{near(key, TABLE_KEYS)}"
            what += "" if "did you mean" in what else f"; there is {', '.join(TABLE_KEYS)}"
            raise RuleError(what, _line_of(file, key), 'write it as rules = ["FOLDER"]')
    listed = table.get("rules", [])
    where = _line_of(file, "rules")
    if not isinstance(listed, list) or not all(isinstance(x, str) and x for x in listed):
        step = 'write it as rules = ["FOLDER"], relative to pyproject.toml'
        raise RuleError("`rules` of [tool.autoport] must be a list of folders", where, step)
    for name in listed:
        yield RuleSource(str(file), file.parent / Path(name).expanduser(), where)


def _line_of(file: Path, key: str) -> str:
    """`file:line` of a key of [tool.autoport], or of the file if it is written in another way."""
    lines = file.read_text(encoding="utf-8").splitlines()
    headers = [i for i, line in enumerate(lines) if re.match(r"\s*\[\s*tool\s*\.\s*autoport", line)]
    wanted = re.compile(rf"\s*(?:tool\.autoport\.)?[\"']?{re.escape(key)}[\"']?\s*[.=]")
    for i in range(headers[0] + 1 if headers else 0, len(lines)):
        if wanted.match(lines[i]):
            return f"{file}:{i + 1}"
    return f"{file}:{headers[0] + 1}" if headers else str(file)


# Installed packages


def _packages() -> Iterator[RuleSource]:
    points = sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value))
    for point in points:
        where = f"entry point `{point.name} = {point.value}` of {_distribution(point)}"
        folder = _package_folder(point.value)
        if folder is None:
            step = f"mend or remove that package: pip uninstall {_distribution(point)}"
            raise RuleError(f"there is no package folder `{point.value}`", where, step)
        yield RuleSource(f"package {_distribution(point)}", folder, where, True)


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.name


def _package_folder(dotted: str) -> Path | None:
    """The folder of a package, found without importing it or the packages around it."""
    if not re.fullmatch(r"\w+(\.\w+)*", dotted):
        return None
    first, *rest = dotted.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):  # an odd entry of sys.modules
        return None
    name = first
    for part in rest:
        name = f"{name}.{part}"
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = _find_below(name, list(spec.submodule_search_locations))
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders = [Path(place) for place in locations if Path(place).is_dir()]
    return folders[0] if folders else None


def _find_below(name: str, locations: list[str]) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, locations)
        if spec is not None:
            return spec
    return None
