"""The options of `autoport validate`, as typer reads them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class DtypeChoice(StrEnum):
    """What the port runs in."""

    bfloat16 = "bfloat16"
    float32 = "float32"
    float16 = "float16"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A folder with weights, a model type such as qwen3, or a hub id."
    ),
]
Level = Annotated[
    str | None,
    typer.Option(
        metavar="3,2,1",
        help="3: every module, 2: whole prompts, 1: tasks. Without it: all that can be run here.",
    ),
]
Impl = Annotated[
    str,
    typer.Option(
        help="vLLM's model_impl to judge. Any but neuron-transformers is judged as served, at levels 2 and 1."
    ),
]
Dtype = Annotated[DtypeChoice, typer.Option(help="What the port runs in.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a report page.")
]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="CLASS:RULE", help="Switch a rule off, in one class or (RULE) in all."),
]
Prompts = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="A file of prompts, or a folder. Without it: built in."),
]
Count = Annotated[int, typer.Option(min=1, help="At most so many prompts.")]
Length = Annotated[int, typer.Option(min=4, help="Tokens per prompt, at most.")]
Chunk = Annotated[int, typer.Option(min=1, help="Tokens per piece of chunked prefill.")]
Tasks = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A folder of lm_eval tasks. Without it: the one built in."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Documents per task, at most.")]
Margin = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Largest loss of accuracy that is accepted.")
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(
        min=0.1, metavar="GIB", help="Stay within this; a larger model goes layer by layer."
    ),
]
Bisect = Annotated[
    bool, typer.Option("--bisect", help="Find the smallest set of rules behind a failure.")
]
NoProve = Annotated[
    bool,
    typer.Option(
        "--no-prove", help="Judge every planned rewrite, also those the proof would leave out."
    ),
]
Engine = Annotated[
    bool | None,
    typer.Option(
        "--engine/--no-engine",
        help="Level 2 of the served model, too. Without it: if vLLM is there.",
    ),
]
