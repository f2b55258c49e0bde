"""`autoport explain CODE|RULE|WORD`: what a reason code, a rule or a word means, and what to do next."""

from __future__ import annotations

from typing import Annotated

import typer

from neuron_autoport.cli.options import RulesOption

EPILOG = """[bold]Examples[/bold]

[cyan]autoport explain AP201[/cyan]: a reason that `inspect` printed

[cyan]autoport explain gated_mlp[/cyan]: a rule

[cyan]autoport explain where[/cyan]: a field of a rule file

[cyan]autoport explain NF.mlp[/cyan]: a function that rules call

[cyan]autoport explain[/cyan]: all that can be asked
"""


def explain_command(
    word: Annotated[
        str | None,
        typer.Argument(metavar="CODE|RULE|WORD", help="Left out: list all that can be asked."),
    ] = None,
    rules: RulesOption = None,
) -> None:
    """Say what a reason code, a rule or a word means, with an example, and what to do next."""
    from rich.console import Console

    from neuron_autoport.explain.pages import all_words, find_pages
    from neuron_autoport.explain.render import print_page
    from neuron_autoport.rules.sources import load_library

    library = load_library(rules or [])
    console = Console(highlight=False)
    if word is None:
        for kind, words in all_words(library).items():
            typer.echo(typer.style(kind, bold=True))
            width = max(len(name) for name, _ in words)
            for name, line in words:
                typer.echo(f"  {name.ljust(width)}  {line}")
        return
    for number, page in enumerate(find_pages(word, library)):
        if number:
            console.print()
        print_page(page, console)
