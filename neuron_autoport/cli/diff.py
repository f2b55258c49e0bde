"""`autoport diff A B`: two models side by side, the first step of a port."""

from __future__ import annotations

from typing import Annotated

import typer

from neuron_autoport.cli.options import HtmlOption, RulesOption, TrustOption

EPILOG = """[bold]Examples[/bold]

[cyan]autoport diff llama qwen3[/cyan]: two model types, at their default configurations

[cyan]autoport diff llama ./my-model[/cyan]: a folder by the example of a model that is known

[cyan]autoport diff llama qwen3 --html diff.html[/cyan]: one page, to be sent around

[cyan]autoport diff ./v1 ./v2 --json | jq '.traits[] | select(.differs)'[/cyan]: for other programs
"""


def diff_command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="The example: a folder, a model type, or a hub id.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The model to port: likewise.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON, and nothing else.")
    ] = False,
    html: HtmlOption = None,
    rules: RulesOption = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Compare A and B: what each does as its graph says, configuration, structure, and what a port must do.

    No weights are read, and no network is used unless A or B is a hub id. Exit code 0 also where they differ.
    """
    from rich.console import Console

    from neuron_autoport.compare.build import compare, load_side
    from neuron_autoport.compare.view import print_comparison
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.rules.sources import load_library

    library = load_library(rules or [], trust_code=trust_remote_code)
    sources = [load_model_config(name, trust_remote_code=trust_remote_code) for name in (a, b)]
    one, other = (load_side(source, library) for source in sources)
    found = compare(one, other)
    if html is not None:
        from neuron_autoport.cli.inspect_output import write_text
        from neuron_autoport.compare.page import comparison_page

        write_text(html, comparison_page(found))
    if as_json:
        typer.echo(found.to_json())
    else:
        print_comparison(found, Console(highlight=False))
