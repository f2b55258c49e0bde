"""A diagnosis as text: what was found, what is wrong with its mend, the verdict, what to set for what."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuron_autoport.doctor.schema import Diagnosis, Problem, Recipe


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print all of it; commands are not broken, so that they can be pasted."""
    _items(diagnosis, console)
    console.print()
    if not diagnosis.problems:
        console.print(Text("No problem was found.", style="green"))
    for problem in diagnosis.problems:
        _problem(problem, console)
    console.print()
    verdict = diagnosis.verdict
    console.print(
        Text(verdict.what, style="green" if verdict.works else "bold red"), soft_wrap=True
    )
    for reason in verdict.why:
        console.print(Text(f"  {reason}"), soft_wrap=True)
    for recipe in diagnosis.recipes:
        console.print()
        _recipe(recipe, console)


def _items(diagnosis: Diagnosis, console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for item in diagnosis.items:
        found = Text("not there", style="dim") if item.found is None else Text(item.found)
        table.add_row(Text(item.name, style="bold"), found, item.note)
    with console.capture() as captured:
        console.print(table)
    console.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def _problem(problem: Problem, console: Console) -> None:
    console.print(Text.assemble(("problem: ", "bold red"), problem.what), soft_wrap=True)
    console.print(Text.assemble(("  why:  ", "dim"), problem.why), soft_wrap=True)
    console.print(Text.assemble(("  mend: ", "dim"), problem.mend), soft_wrap=True)


def _recipe(recipe: Recipe, console: Console) -> None:
    console.print(Text(f"To {recipe.purpose}:", style="bold"), soft_wrap=True)
    width = max(len(_export(s.name, s.value)) for s in recipe.settings)
    for setting in recipe.settings:
        line = _export(setting.name, setting.value).ljust(width)
        now = f" (now {setting.set_to!r})" if setting.set_to is not None else ""
        console.print(
            Text.assemble(f"  {line}", (f"  # {setting.why}{now}", "dim")), soft_wrap=True
        )
    console.print(Text(f"  {recipe.command}"), soft_wrap=True)


def _export(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}"
