"""`autoport doctor`: what is installed, what will run where, and what would not work."""

from __future__ import annotations

from typing import Annotated

import typer

EPILOG = """[bold]Examples[/bold]

[cyan]autoport doctor[/cyan]: what is here, what is wrong, and the commands that mend it

[cyan]autoport doctor && vllm serve MODEL --model-impl neuron-transformers[/cyan]: only if all is well

[cyan]autoport doctor --json | jq .verdict[/cyan]: for other programs
"""


def doctor_command(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the diagnosis as JSON, and nothing else.")
    ] = False,
) -> None:
    """Say what is installed, what `--model-impl neuron-transformers` would do here, and what to mend.

    Reads package metadata, files and variables; imports neither torch nor vLLM. Exit code: 0 nothing is wrong,
    1 something would not work.
    """
    from rich.console import Console

    from neuron_autoport.doctor.examine import examine
    from neuron_autoport.doctor.facts import gather
    from neuron_autoport.doctor.view import print_diagnosis

    diagnosis = examine(gather())
    if as_json:
        typer.echo(diagnosis.to_json())
    else:
        print_diagnosis(diagnosis, Console(highlight=False))
    if diagnosis.exit_code:
        raise typer.Exit(diagnosis.exit_code)
