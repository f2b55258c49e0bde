"""`autoport validate MODEL`: is the port as accurate as the reference: modules, prompts, tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuron_autoport.errors import AutoportError, ProofFailed

if TYPE_CHECKING:
    from neuron_autoport.accuracy.options import Options
    from neuron_autoport.accuracy.schema import Report

EPILOG = """[bold]Examples[/bold]

[cyan]autoport validate ./SmolLM2-135M[/cyan]: every level that can be run here

[cyan]autoport validate DIR --level 3 --dtype float32[/cyan]: the modules, strictly

[cyan]autoport validate DIR --rules MINE --no-prove --bisect[/cyan]: which of my rules is wrong?

[cyan]autoport validate DIR --level 2,1 --prompts FILE --tasks DIR --html out.html[/cyan]: a release

[cyan]autoport validate qwen3[/cyan]: a small model of a type, with adversarial weights
"""


class DtypeChoice(StrEnum):
    """What the port runs in."""

    bfloat16 = "bfloat16"
    float32 = "float32"
    float16 = "float16"


def validate_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder with weights, a model type such as qwen3, or a hub id."
        ),
    ],
    level: Annotated[
        str | None,
        typer.Option(
            metavar="3,2,1",
            help="3: every module, 2: whole prompts, 1: tasks. Without it: all that can be run here.",
        ),
    ] = None,
    impl: Annotated[
        str,
        typer.Option(
            help="vLLM's model_impl to judge. Any but neuron-transformers is judged as served, at levels 2 and 1."
        ),
    ] = "neuron-transformers",
    dtype: Annotated[
        DtypeChoice, typer.Option(help="What the port runs in.")
    ] = DtypeChoice.bfloat16,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report page.")
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder of rules of your own. Repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS:RULE", help="Switch a rule off, in one class or (RULE) in all."
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A file of prompts, or a folder. Without it: built in."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="At most so many prompts.")] = 6,
    length: Annotated[int, typer.Option(min=4, help="Tokens per prompt, at most.")] = 96,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens per piece of chunked prefill.")] = 16,
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A folder of lm_eval tasks. Without it: the one built in."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Documents per task, at most.")] = None,
    margin: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Largest loss of accuracy that is accepted.")
    ] = 0.05,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="GIB", help="Stay within this; a larger model goes layer by layer."
        ),
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Find the smallest set of rules behind a failure.")
    ] = False,
    no_prove: Annotated[
        bool,
        typer.Option(
            "--no-prove", help="Judge every planned rewrite, also those the proof would leave out."
        ),
    ] = False,
    engine: Annotated[
        bool | None,
        typer.Option(
            "--engine/--no-engine",
            help="Level 2 of the served model, too. Without it: if vLLM is there.",
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
) -> None:
    """Judge the accuracy of MODEL's port: each module, whole prompts, and tasks.

    Exit code 3 if anything fails, 2 if the model, the prompts or a tool is not there.
    """
    levels = _levels(level)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from neuron_autoport.accuracy.options import Options, available_levels
    from neuron_autoport.accuracy.run import validate
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.rules.library import load_rules

    source = load_model_config(model, trust_remote_code=trust_remote_code)
    can, why_not = available_levels(source, impl, levels, engine)
    options = Options(
        levels=can.levels,
        impl=impl,
        dtype=dtype.value,
        without=tuple(without or ()),
        prompts=prompts,
        count=count,
        length=length,
        chunk=chunk,
        memory=None if memory is None else int(memory * 2**30),
        prove=not no_prove,
        engine=can.engine,
        bisect=bisect,
        tasks=tasks,
        limit=limit,
        margin=margin,
        left_out=tuple(why_not),
        folders=tuple(map(str, rules or ())),
    )
    for file in (json_file, html_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise AutoportError(
                "There is no such folder to write to.", str(file), f"mkdir -p {file.parent}"
            )
    with _shown_progress() as progress:
        report = validate(source, load_rules(rules or []), _with_progress(options, progress))
    _write(report, json_file, html_file)
    _finish(report, model)


def _levels(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or any(p not in ("1", "2", "3") for p in parts):
        raise typer.BadParameter("levels are 1, 2 and 3, separated by commas", param_hint="--level")
    return tuple(sorted({int(p) for p in parts}, reverse=True))


def _with_progress(options: Options, progress: Callable[[str, int, int], None]) -> Options:
    from dataclasses import replace

    return replace(options, progress=progress)


@contextmanager
def _shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A line on stderr that says what is done and how much is left; plain lines if it is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _plain_progress(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def _plain_progress(console: Any) -> Callable[[str, int, int], None]:
    """One line for each stage, not for each step of it."""
    last = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        stage = what.partition(": model")[0]
        if stage != last:
            console.print(f"autoport: {what}", soft_wrap=True)
            last = stage

    return show


def _write(report: Report, json_file: Path | None, html_file: Path | None) -> None:
    from neuron_autoport.accuracy.page import report_page

    if json_file is not None:
        json_file.write_text(report.to_json(), encoding="utf-8")
    if html_file is not None:
        html_file.write_text(report_page(report), encoding="utf-8")


def _finish(report: Report, model: str) -> None:
    from rich.console import Console

    from neuron_autoport.accuracy.text import print_report

    print_report(report, Console(highlight=False))
    if report.passed:
        return
    if report.settings.dropped:
        what = (
            f"Rewrites that failed their proof are left out: {'; '.join(report.settings.dropped)}."
        )
        step = f"autoport validate {model} --no-prove --bisect judges them with real weights"
        raise ProofFailed(what, model, step)
    first = next(
        (c for f in report.failures for c in f.commands), f"autoport inspect {model} --diff"
    )
    raise ProofFailed("The port is not as accurate as its reference.", model, first)
