"""Options that several commands have, each defined once: the same name, the same help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RulesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--rules",
        metavar="DIR",
        help="A folder of rules of your own; one of a built-in's name replaces it. Repeatable.",
    ),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]
TrustFileOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with the model, or FILE.py."),
]
TpOption = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel ranks of the model.")]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write it as one self-contained page."),
]
InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SIZES",
        help="Of FILE.py:CLASS: sizes of an argument of forward, [NAME=]2,8,64[:int|bool]. "
        "Repeatable.",
    ),
]
InitOption = Annotated[
    str | None,
    typer.Option("--init", metavar="JSON", help="Of FILE.py:CLASS: what the class is made with."),
]
