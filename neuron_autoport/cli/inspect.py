"""`autoport inspect MODEL`: what of a model runs in fused calls, what does not, and why.

The same for one module of the user's own: `autoport inspect FILE.py:CLASS --input 2,8,64`.
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuron_autoport.cli.own import DtypeName, OwnRequest
from neuron_autoport.errors import DemandNotMet, ProofFailed

if TYPE_CHECKING:
    from neuron_autoport.models.own_module import OwnModule
    from neuron_autoport.models.source import ModelSource
    from neuron_autoport.pipeline import ProvedPort
    from neuron_autoport.port import Port
    from neuron_autoport.report.schema import Report
    from neuron_autoport.rules.rule import Rule


class TargetName(StrEnum):
    """What limits are judged for."""

    trn2 = "trn2"
    trn3 = "trn3"
    cpu = "cpu"


EPILOG = """[bold]Examples[/bold]

[cyan]autoport inspect qwen3[/cyan]: a model type, at its default configuration

[cyan]autoport inspect ./SmolLM2-135M --diff[/cyan]: how the source changes

[cyan]autoport inspect llama --tp 8[/cyan]: limits of the kernels on 8 ranks

[cyan]autoport inspect llama --json | jq .coverage[/cyan]: for other programs

[cyan]autoport inspect mine.py:MLP --input 2,8,64 --rules DIR --trust-remote-code[/cyan]: one module

[cyan]autoport inspect DIR --strict --require-coverage 90[/cyan]: for CI
"""


def inspect_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder with a config.json, a model type such as qwen3, a hub id, or one module: "
            "FILE.py:CLASS.",
        ),
    ],
    diff: Annotated[
        bool, typer.Option("--diff", help="Show how the source changes, instead of the report.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, and nothing else.")
    ] = False,
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A folder of rules of your own; one of a built-in's name replaces it. Repeatable.",
        ),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    target: Annotated[TargetName, typer.Option(help="Whose limits are judged.")] = TargetName.trn2,
    prove: Annotated[
        bool, typer.Option("--prove", help="Prove every rewrite and show the figures (slower).")
    ] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code that comes with the model, or FILE.py."),
    ] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SIZES",
            help="Of FILE.py:CLASS: sizes of an argument of forward, [NAME=]2,8,64[:int|bool]. "
            "Repeatable.",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Of FILE.py:CLASS: what the class is made with."),
    ] = None,
    dtype: Annotated[
        DtypeName, typer.Option(help="Of FILE.py:CLASS: what it is traced in.")
    ] = DtypeName.bf16,
    require_coverage: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, metavar="PERCENT", help="Exit with 1 if less of the FLOPs is in sites."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if any rule was refused.")
    ] = False,
) -> None:
    """Show what of MODEL runs in fused calls, what does not, and why.

    No weights are read, and no network is used unless MODEL is a hub id. One module (FILE.py:CLASS) is also
    proved, with random weights.
    """
    if diff and as_json:
        raise typer.BadParameter("choose one of --diff and --json")
    started = time.perf_counter()
    named = OwnRequest(
        ("autoport", "inspect", model), model, tuple(inputs or ()), init, dtype, trust_remote_code,
        _others(rules or [], tp, target, diff, as_json),
    )  # fmt: skip
    source: ModelSource | OwnModule
    proved: ProvedPort | None
    if named.is_module:
        source, library, own_proved = _own(named, rules or [])
        port, proved = own_proved.port, own_proved
    else:
        if inputs or init or dtype is not DtypeName.bf16:
            raise typer.BadParameter("--input, --init and --dtype are for FILE.py:CLASS only")
        source, library = _load(model, rules or [], trust_remote_code)
        port, proved = _plan(source, library, prove)
    report = _report(source, port, proved, target, tp, library, started)
    if as_json:
        typer.echo(report.to_json())
    else:
        _print(source, port, report, diff)
        spoken_of = any(c.sites or c.refusals or c.end for c in report.classes)
        if named.is_module and not spoken_of:
            typer.echo(f"no rule came near; to write one: {named.rule_command()}")
    command = named.text() if named.is_module else f"autoport inspect {model}"
    _check(report, require_coverage, strict, command)


def _others(
    rules: list[Path], tp: int, target: TargetName, diff: bool, as_json: bool
) -> tuple[str, ...]:
    """The other options of a command line, as words."""
    words = [word for folder in rules for word in ("--rules", str(folder))]
    words += ["--tp", str(tp)] if tp != 1 else []
    words += ["--target", target.value] if target is not TargetName.trn2 else []
    return (*words, *(["--diff"] if diff else []), *(["--json"] if as_json else []))


def _own(named: OwnRequest, folders: list[Path]) -> tuple[OwnModule, tuple[Rule, ...], ProvedPort]:
    from neuron_autoport.own import port_own
    from neuron_autoport.rules.sources import load_library

    library = load_library(folders)
    own = named.load()
    return own, library, port_own(own, library, command=named.text())


def _load(
    model: str, folders: list[Path], trust_remote_code: bool
) -> tuple[ModelSource, tuple[Rule, ...]]:
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.rules.sources import load_library

    library = load_library(folders)
    return load_model_config(model, trust_remote_code=trust_remote_code), library


def _plan(
    source: ModelSource, library: tuple[Rule, ...], prove: bool
) -> tuple[Port, ProvedPort | None]:
    from neuron_autoport.pipeline import proved_port
    from neuron_autoport.port import port_model

    if not prove:
        return port_model(source, library), None
    proved = proved_port(source, library)
    return proved.port, proved


def _report(
    source: ModelSource | OwnModule,
    port: Port,
    proved: ProvedPort | None,
    target: TargetName,
    tp: int,
    library: tuple[Rule, ...],
    started: float,
) -> Report:
    from neuron_autoport.report.build import build_report
    from neuron_autoport.report.schema import Target

    seconds = {"prove": proved.seconds} if proved is not None else {}
    seconds["total"] = time.perf_counter() - started
    judged = Target(name=target.value, tp=tp)
    return build_report(source, port, judged, library=library, proved=proved, seconds=seconds)


def _print(source: ModelSource | OwnModule, port: Port, report: Report, diff: bool) -> None:
    from rich.console import Console

    from neuron_autoport.report.diff import class_diffs, print_diffs
    from neuron_autoport.report.terminal import (
        print_header,
        print_proof,
        print_report,
        print_summary,
    )

    console = Console(highlight=False)
    if not diff:
        print_report(report, console)
        return
    print_header(report, console)
    console.print()
    print_diffs(class_diffs(port, source.folder), console)
    if report.model.kind == "module":
        print_proof(report, console)
    print_summary(report, console)


def _check(report: Report, require_coverage: float | None, strict: bool, command: str) -> None:
    """The demands of the command line, the gravest first. command: the plain one, for errors."""
    from neuron_autoport.rewrite.reasons import STATED

    name = report.model.name
    dropped = [f"{rule} in {c.name}" for c in report.classes for rule in c.dropped]
    if dropped:
        listed = ", ".join(dict.fromkeys(dropped))
        step = f"{command} --diff shows the rewrites"
        raise ProofFailed(f"Rewrites that failed their proof are left out: {listed}.", name, step)
    found = report.coverage.flops.percent
    if require_coverage is not None and found < require_coverage:
        what = f"{found:.2f} % of the FLOPs is in sites, {require_coverage:g} % was demanded."
        step = f"{command} lists what is left to torch"
        raise DemandNotMet(what, name, step)
    # That the target has no function for something is no demand that anything could meet.
    refused = [r for c in report.classes for r in c.refusals if r.code != STATED]
    ended = [c for c in report.classes if c.end is not None]
    if strict and (refused or ended):
        rules = ", ".join(sorted({r.rule for r in refused}))
        parts = [f"refused: {rules}"] if refused else []
        parts += [f"not traced to the end: {c.name}" for c in ended]
        step = f"{command} shows where and why"
        raise DemandNotMet(f"--strict: {'; '.join(parts)}.", name, step)
