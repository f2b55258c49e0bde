"""`autoport port MODEL -o DIR`: the rewritten model as a package of readable source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuron_autoport.cli.options import RulesOption, TrustOption

EPILOG = """[bold]Examples[/bold]

[cyan]autoport port llama -o neuron_llama[/cyan]: a model type, at its default configuration

[cyan]autoport port ./SmolLM2-135M -o smollm2 --force[/cyan]: replace what is in the folder

[cyan]autoport port llama -o mine --rules DIR[/cyan]: with rules of your own
"""


def port_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder with a config.json, a model type such as qwen3, or a hub id.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder of the package; it must not exist yet."
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace DIR if it exists, edits in it included.")
    ] = False,
    rules: RulesOption = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="A rule not to use, or Class:rule. Repeatable."),
    ] = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Write MODEL's rewritten source as a package for the vLLM Neuron plugin, to read, edit and serve.

    No weights are read. The package is run on a small model of the same kind before it is written.
    """
    from neuron_autoport.export.write import OutputError, export
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.rules.sources import load_library

    if output.exists() and not force:  # before anything slow
        step = f"autoport port {model} -o {output} --force replaces it"
        raise OutputError("The output folder exists already.", str(output), step)
    library = load_library(rules or [], trust_code=trust_remote_code)
    source = load_model_config(model, trust_remote_code=trust_remote_code)
    made = export(source, output, library, force=force, without=frozenset(without or []))
    lines = sum(text.count("\n") for text in made.files.values())
    typer.echo(f"{output}: {made.architecture}, {len(made.files)} files, {lines} lines")
    typer.echo(f"read {output / 'README.md'}; to serve it: pip install -e {output}")
