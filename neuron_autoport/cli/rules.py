"""`autoport rules`: list the rule library, show one rule's file, run the examples of rules, write a new one."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuron_autoport.cli.options import RulesOption
from neuron_autoport.cli.rules_new import NEW_EPILOG, new_command
from neuron_autoport.errors import RuleError

if TYPE_CHECKING:
    from rich.console import Console

    from neuron_autoport.rules.examples import Outcome
    from neuron_autoport.rules.rule import Rule

rules_app = typer.Typer(
    no_args_is_help=True,
    help="The rule library: list it, show a rule, run the examples of rules, write a new one.",
)
rules_app.command("new", epilog=NEW_EPILOG)(new_command)


LIST_EPILOG = """[bold]Examples[/bold]

[cyan]autoport rules list[/cyan]: the built-in rules

[cyan]autoport rules list --rules DIR --json[/cyan]: with your own, for other programs
"""
SHOW_EPILOG = """[bold]Examples[/bold]

[cyan]autoport rules show gated_mlp > my_mlp.yaml[/cyan]: a first version of a rule of your own
"""
TEST_EPILOG = """[bold]Examples[/bold]

[cyan]autoport rules test[/cyan]: the examples of all built-in rules

[cyan]autoport rules test gated_mlp[/cyan]: of one

[cyan]autoport rules test DIR --trust-remote-code[/cyan]: of your own; this runs the code in them
"""


@rules_app.command("list", epilog=LIST_EPILOG)
def list_command(
    rules: RulesOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the list as JSON, and nothing else.")
    ] = False,
) -> None:
    """List all rules: name, role, what they match, the function they call, where they come from, their file.

    Rules are built in, or come from installed packages, the nearest pyproject.toml, AUTOPORT_RULES, or --rules; of
    one name the last of these counts.
    """
    from neuron_autoport.rules.builtin import is_builtin
    from neuron_autoport.rules.sources import load_library, origin_of, replaces_builtin

    found = load_library(rules or [])
    if not as_json:
        _print_table(found)
        return
    rows = [
        {"name": r.name, "role": r.role, "summary": r.summary, "call": r.call,
         "file": str(r.path), "builtin": is_builtin(r), "origin": origin_of(r),
         "replaces_builtin": replaces_builtin(r),
         "matches": len(r.examples), "rejects": len(r.rejects)}
        for r in found
    ]  # fmt: skip
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


@rules_app.command("show", epilog=SHOW_EPILOG)
def show_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A rule's name.")],
    rules: RulesOption = None,
) -> None:
    """Print the file of a rule as it is written, below a comment with its path."""
    from neuron_autoport.nearest import near
    from neuron_autoport.rules.sources import load_library, origin_of

    found = {r.name: r for r in load_library(rules or [])}
    if name not in found:
        raise RuleError(
            f"there is no rule `{name}`{near(name, found)}", None, "autoport rules list"
        )
    origin = origin_of(found[name])
    typer.echo(f"# {found[name].path}" + ("" if origin == "built in" else f" ({origin})"))
    typer.echo(found[name].text.rstrip("\n"))


@rules_app.command("test", epilog=TEST_EPILOG)
def test_command(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="A rule file, a folder of them, or a rule's name; all rules if left out.",
        ),
    ] = None,
    rules: RulesOption = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code", help="Run the examples of rules that are not built in, too."
        ),
    ] = False,
) -> None:
    """Run the examples of rules: trace, match, rewrite and prove each one.

    Each rule is tried alone. A role that it asks for may come from a file beside it.

    What went otherwise than the file says is:

    missing: not fused, and should be (exit code 1)

    noisy: fused, and should not be (exit code 1)

    broken: the example itself does not run (exit code 2)

    failed: the rewrite computes something else (exit code 3)
    """
    from rich.console import Console

    from neuron_autoport.rules.examples import check_trusted, run_rule
    from neuron_autoport.rules.python_rule import trusted
    from neuron_autoport.rules.sources import load_library

    library = load_library(rules or [], trust_code=trust_remote_code)
    chosen, beside = _chosen(path, library) if path is not None else (library, ())
    words = [str(path)] if path is not None else []
    words += [word for folder in rules or [] for word in ("--rules", str(folder))]
    check_trusted(chosen, trust_remote_code, shlex.join(("autoport", "rules", "test", *words)))
    chosen = tuple(trusted(rule) for rule in chosen)  # what runs examples may run checks
    library = (*map(trusted, beside), *library)
    console = Console(highlight=False)
    for rule in beside:
        text = f"with {_short(rule.path)}, for the role {rule.role}"
        console.print(text, style="dim", soft_wrap=True)
    outcomes = []
    for rule in chosen:
        for outcome in run_rule(rule, (*chosen, *library)):
            _print_outcome(outcome, console)
            outcomes.append(outcome)
    _print_count(chosen, outcomes, console)
    raise typer.Exit(_exit_code(outcomes))


def _chosen(path: Path, library: tuple[Rule, ...]) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The rules to be tried; and those of files beside that give roles these ask for.

    Raises:
        RuleError: there are none, a file is wrong, or a role is given by no rule.
    """
    from neuron_autoport.nearest import near
    from neuron_autoport.rules.check_roles import check_roles
    from neuron_autoport.rules.library import rules_at, rules_beside

    named = () if path.exists() else tuple(r for r in library if r.name == str(path))
    if not named and not path.exists():
        hint = near(str(path), (r.name for r in library))
        what = f"there is neither a rule file or folder nor a rule `{path}`{hint}"
        raise RuleError(what, str(path), "autoport rules list shows the files of all rules")
    chosen = named or rules_at(path)
    every = {r.name: r for r in (*library, *chosen)}
    beside = rules_beside(path, every.values()) if path.is_file() else ()
    check_roles([*every.values(), *beside], _folder_step(path) if path.is_file() else None)
    return chosen, beside


def _folder_step(path: Path) -> str:
    """What to do where a rule asks for a role that nothing here gives."""
    words = shlex.join(("autoport", "rules", "test", str(path)))
    return f"autoport rules list, or {words} --rules DIR with the folder of the rule that gives it"


def _print_table(rules: tuple[Rule, ...]) -> None:
    """Two lines a rule: name, role, call and file in columns; below them what it matches."""
    from neuron_autoport.rules.sources import origin_of

    head = ("name", "role", "call", "from", "file")
    rows = [(r.name, r.role, r.call, _short_origin(origin_of(r)), _short(r.path)) for r in rules]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(4)]
    typer.echo(typer.style(_columns(head, widths), bold=True))
    for rule, row in zip(rules, rows, strict=True):
        typer.echo(_columns(row, widths))
        typer.echo(typer.style(f"    {rule.summary}", dim=True))


def _columns(row: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join([*(c.ljust(w) for c, w in zip(row[:4], widths, strict=True)), row[4]])


def _short_origin(origin: str) -> str:
    """A pyproject.toml without its folder: the rule's file tells where that is."""
    return Path(origin).name if origin.endswith("pyproject.toml") else origin


def _short(path: Path) -> str:
    """A built-in rule's file from `patterns/` on; another's from here, if it is below."""
    from neuron_autoport.rules.library import builtin_folder

    resolved, builtin = path.resolve(), builtin_folder().resolve()
    if resolved.is_relative_to(builtin):
        return str(resolved.relative_to(builtin.parent))
    here = os.getcwd()
    return os.path.relpath(resolved, here) if resolved.is_relative_to(here) else str(path)


def _print_outcome(outcome: Outcome, console: Console) -> None:
    from rich.text import Text

    from neuron_autoport.rules.examples import Kind

    if outcome.kind is Kind.good:
        return
    place = f"{_short(outcome.rule.path)}:{outcome.example.line}"
    parts = ((f"{outcome.kind.value:<8}", "bold red"), (place, "cyan"), f"  {outcome.rule.name}")
    console.print(Text.assemble(*parts), soft_wrap=True)
    console.print(Text(f"        {outcome.message}"), soft_wrap=True)


def _print_count(rules: Iterable[Rule], outcomes: list[Outcome], console: Console) -> None:
    from neuron_autoport.rules.examples import Kind

    bare = [r.name for r in rules if not r.examples and not r.rejects]
    if bare:
        console.print(f"without examples: {', '.join(bare)}", soft_wrap=True)
    count = {k: sum(o.kind is k for o in outcomes) for k in Kind}
    failed = sum(_proof_failed(o) for o in outcomes)
    tested = len({o.rule.name for o in outcomes})
    parts = [f"{count[Kind.missing]} missing", f"{count[Kind.noisy]} noisy", f"{failed} failed"]
    if count[Kind.broken]:
        parts.append(f"{count[Kind.broken]} broken")
    rest = f"{_number(len(outcomes), 'example')} of {_number(tested, 'rule')}: {', '.join(parts)}"
    console.print(rest, style="bold", soft_wrap=True)


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("" if count == 1 else "s")


def _proof_failed(outcome: Outcome) -> bool:
    return outcome.proof is not None and not outcome.proof.passed


def _exit_code(outcomes: list[Outcome]) -> int:
    """The gravest decides."""
    from neuron_autoport.rules.examples import Kind

    if any(_proof_failed(o) for o in outcomes):
        return 3
    if any(o.kind is Kind.broken for o in outcomes):
        return 2
    return int(any(o.kind is not Kind.good for o in outcomes))
