"""`autoport validate MODEL`: is the port as accurate as the reference: modules, prompts, tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neuron_autoport.cli import validate_options as given
from neuron_autoport.cli.options import RulesOption, TpOption, TrustOption
from neuron_autoport.errors import AutoportError, ProofFailed

if TYPE_CHECKING:
    from neuron_autoport.accuracy.options import Options
    from neuron_autoport.accuracy.schema import Report
    from neuron_autoport.models.source import ModelSource

EPILOG = """[bold]Examples[/bold]

[cyan]autoport validate ./SmolLM2-135M[/cyan]: every level that can be run here

[cyan]autoport validate DIR --level 3 --dtype float32[/cyan]: the modules, strictly

[cyan]autoport validate DIR --rules MINE --no-prove --bisect[/cyan]: which of my rules is wrong?

[cyan]autoport validate DIR --level 2,1 --prompts FILE --tasks DIR --html out.html[/cyan]: a release

[cyan]autoport validate qwen3[/cyan]: a small model of a type, with adversarial weights
"""


def validate_command(
    model: given.Model,
    level: given.Level = None,
    impl: given.Impl = "neuron-transformers",
    dtype: given.Dtype = given.DtypeChoice.bfloat16,
    json_file: given.JsonFile = None,
    html_file: given.HtmlFile = None,
    rules: RulesOption = None,
    without: given.Without = None,
    prompts: given.Prompts = None,
    count: given.Count = 6,
    length: given.Length = 96,
    chunk: given.Chunk = 16,
    tasks: given.Tasks = None,
    limit: given.Limit = None,
    margin: given.Margin = 0.05,
    memory: given.MemoryLimit = None,
    tp: TpOption = 1,
    bisect: given.Bisect = False,
    no_prove: given.NoProve = False,
    engine: given.Engine = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Judge the accuracy of MODEL's port: each module, whole prompts, and tasks.

    Exit code 3 if anything fails, 2 if the model, the prompts or a tool is not there.
    """
    levels = _levels(level)
    _settle_threads()
    from neuron_autoport.accuracy.options import Options, available_levels
    from neuron_autoport.models.plain import check_served
    from neuron_autoport.models.source import load_model_config

    source = load_model_config(model, trust_remote_code=trust_remote_code)
    check_served(source)
    can, why_not = available_levels(source, impl, levels, engine)
    _check_writable(json_file, html_file)
    options = Options(
        levels=can.levels, impl=impl, dtype=dtype.value, without=tuple(without or ()), prompts=prompts,
        count=count, length=length, chunk=chunk,
        memory=None if memory is None else int(memory * 2**30), tp=tp, prove=not no_prove,
        engine=can.engine, bisect=bisect, tasks=tasks, limit=limit, margin=margin,
        left_out=tuple(why_not), folders=tuple(map(str, rules or ())),
    )  # fmt: skip
    report = _validated(source, options, rules or [])
    _write(report, json_file, html_file)
    _finish(report, model)


def _settle_threads() -> None:
    """Settings that count only before torch is imported.

    Level 3 runs many small products, and between them the threads of one wait for the next. Spinning
    while they wait, as they do by default, takes the processor from whatever else runs.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _check_writable(*files: Path | None) -> None:
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise AutoportError(
                "There is no such folder to write to.", str(file), f"mkdir -p {file.parent}"
            )


def _validated(source: ModelSource, options: Options, folders: list[Path]) -> Report:
    from neuron_autoport.accuracy.run import validate
    from neuron_autoport.rules.library import load_rules

    with _shown_progress() as progress:
        return validate(source, load_rules(folders), replace(options, progress=progress))


def _levels(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or any(p not in ("1", "2", "3") for p in parts):
        raise typer.BadParameter("levels are 1, 2 and 3, separated by commas", param_hint="--level")
    return tuple(sorted({int(p) for p in parts}, reverse=True))


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
