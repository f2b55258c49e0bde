"""The options of `autoport inspect`, each with its help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from neuron_autoport.cli import inspect_serving
from neuron_autoport.cli.inspect_output import FormatName
from neuron_autoport.cli.own import DtypeName


class TargetName(StrEnum):
    """What limits are judged for."""

    trn2 = "trn2"
    trn3 = "trn3"
    cpu = "cpu"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A folder with a config.json, a model type such as qwen3, a hub id, or one module: "
        "FILE.py:CLASS.",
    ),
]
DiffOption = Annotated[
    bool, typer.Option("--diff", help="Show how the source changes, instead of the report.")
]
AsJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the report as JSON: --format json.")
]
FormatOption = Annotated[FormatName, typer.Option("--format", help="How the report is printed.")]
CompareOption = Annotated[
    Path | None,
    typer.Option(
        metavar="OLD.json",
        help="Print what changed since a report of --json; with --strict, exit with 1 if something is lost.",
    ),
]
TargetOption = Annotated[TargetName, typer.Option(help="Whose limits are judged.")]
BatchOption = Annotated[
    int | None,
    typer.Option(min=1, help="Sequences of a decode step: draw its roofline (a model)."),
]
ContextOption = Annotated[
    int | None,
    typer.Option(min=1, help="Positions each attends to, of the roofline; 1024 if not given."),
]
BucketsOption = Annotated[str | None, typer.Option(metavar="SIZES", help=inspect_serving.HELP)]
ProveOption = Annotated[
    bool, typer.Option("--prove", help="Prove every rewrite and show the figures (slower).")
]
DtypeOption = Annotated[DtypeName, typer.Option(help="Of FILE.py:CLASS: what it is traced in.")]
RequireCoverageOption = Annotated[
    float | None,
    typer.Option(
        "--require-coverage",
        "--min-coverage",
        min=0,
        max=100,
        metavar="PERCENT",
        help="Exit with 1 if less of the FLOPs is in sites.",
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 if any rule was refused.")
]
