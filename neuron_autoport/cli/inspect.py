"""`autoport inspect MODEL`: what of a model runs in fused calls, what does not, and why.

The same for one module of the user's own: `autoport inspect FILE.py:CLASS --input 2,8,64`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from neuron_autoport.cli import inspect_options as opt
from neuron_autoport.cli import inspect_serving
from neuron_autoport.cli.inspect_options import TargetName
from neuron_autoport.cli.inspect_output import FormatName, Output
from neuron_autoport.cli.options import (
    HtmlOption,
    InitOption,
    InputsOption,
    RulesOption,
    TpOption,
    TrustFileOption,
)
from neuron_autoport.cli.own import DtypeName, OwnRequest
from neuron_autoport.errors import DemandNotMet, ProofFailed

if TYPE_CHECKING:
    from neuron_autoport.models.own_module import OwnModule
    from neuron_autoport.models.source import ModelSource
    from neuron_autoport.pipeline import ProvedPort
    from neuron_autoport.port import Port
    from neuron_autoport.report.roofline.model import Step
    from neuron_autoport.report.schema import Report
    from neuron_autoport.rules.rule import Rule


EPILOG = """[bold]Examples[/bold]

[cyan]autoport inspect qwen3[/cyan]: a model type, at its default configuration

[cyan]autoport inspect ./SmolLM2-135M --diff[/cyan]: how the source changes

[cyan]autoport inspect llama --tp 8[/cyan]: limits of the kernels on 8 ranks

[cyan]autoport inspect llama --tp 8 --batch 16 --context 4096[/cyan]: the roofline of a decode step

[cyan]autoport inspect llama --tp 8 --buckets 128,512[/cyan]: what every call runs in, served

[cyan]autoport inspect llama --json | jq .coverage[/cyan]: for other programs

[cyan]autoport inspect llama --html llama.html[/cyan]: one page with sources and pictures

[cyan]autoport inspect DIR --compare old.json --strict[/cyan]: what an upgrade lost

[cyan]autoport inspect mine.py:MLP --input 2,8,64 --rules DIR --trust-remote-code[/cyan]: one module

[cyan]autoport inspect DIR --strict --require-coverage 90[/cyan]: for CI
"""


def inspect_command(
    model: opt.ModelArgument,
    diff: opt.DiffOption = False,
    as_json: opt.AsJsonOption = False,
    format: opt.FormatOption = FormatName.text,
    html: HtmlOption = None,
    compare: opt.CompareOption = None,
    rules: RulesOption = None,
    tp: TpOption = 1,
    target: opt.TargetOption = TargetName.trn2,
    batch: opt.BatchOption = None,
    context: opt.ContextOption = None,
    buckets: opt.BucketsOption = None,
    prove: opt.ProveOption = False,
    trust_remote_code: TrustFileOption = False,
    inputs: InputsOption = None,
    init: InitOption = None,
    dtype: opt.DtypeOption = DtypeName.bf16,
    require_coverage: opt.RequireCoverageOption = None,
    strict: opt.StrictOption = False,
) -> None:
    """Show what of MODEL runs in fused calls, what does not, and why.

    No weights are read, and no network is used unless MODEL is a hub id. One module (FILE.py:CLASS) is also
    proved, with random weights.
    """
    output = _output(diff, FormatName.json if as_json else format, html, compare)
    started = time.perf_counter()
    named = OwnRequest(
        ("autoport", "inspect", model), model, tuple(inputs or ()), init, dtype, trust_remote_code,
        _others(rules or [], tp, target, diff, as_json),
    )  # fmt: skip
    lengths = inspect_serving.read_buckets(buckets, target.value, named.is_module)
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
    step = _step(batch, context, tp, target)
    report = _report(source, port, proved, target, tp, library, started, step)
    report = inspect_serving.with_serving(report, source, port, library, lengths, batch)
    output.write(report, port, source.folder)
    spoken_of = any(c.sites or c.refusals or c.end for c in report.classes)
    if output.format is FormatName.text and named.is_module and not spoken_of:
        typer.echo(f"no rule came near; to write one: {named.rule_command()}")
    if output.format is FormatName.text:
        inspect_serving.say_what_stops(report)
    trust = " --trust-remote-code" if trust_remote_code else ""
    command = named.text() if named.is_module else f"autoport inspect {model}{trust}"
    _check(report, require_coverage, strict and compare is None, command)
    if strict:
        output.demand_nothing_lost(report, command)
        inspect_serving.demand_served(report, command)


def _output(diff: bool, format: FormatName, html: Path | None, compare: Path | None) -> Output:
    """What the options ask for; those that exclude each other are refused before any work."""
    from neuron_autoport.report.changes import read_report

    printed = "--json" if format is FormatName.json else f"--format {format}"
    asked = {"--diff": diff, printed: format is not FormatName.text}
    asked["--compare"] = compare is not None
    named = [name for name, is_asked in asked.items() if is_asked]
    if len(named) > 1:
        raise typer.BadParameter(f"choose one of {' and '.join(named)}")
    return Output(format, diff, html, read_report(compare) if compare is not None else None)


def _step(batch: int | None, context: int | None, tp: int, target: TargetName) -> Step | None:
    """What the roofline is asked for, if it is."""
    from neuron_autoport.report.cost import REFERENCE_CONTEXT
    from neuron_autoport.report.roofline.model import Step

    if batch is None and context is None:
        return None
    if target is TargetName.cpu:
        raise typer.BadParameter(
            "--batch and --context ask for a roofline: choose --target trn2 or trn3"
        )
    return Step(batch or 1, context or REFERENCE_CONTEXT, tp)


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

    library = load_library(folders, trust_code=named.trusted)
    own = named.load()
    return own, library, port_own(own, library, command=named.text())


def _load(
    model: str, folders: list[Path], trust_remote_code: bool
) -> tuple[ModelSource, tuple[Rule, ...]]:
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.rules.sources import load_library

    library = load_library(folders, trust_code=trust_remote_code)
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
    step: Step | None,
) -> Report:
    from neuron_autoport.report.build import build_report
    from neuron_autoport.report.schema import Target

    seconds = {"prove": proved.seconds} if proved is not None else {}
    seconds["total"] = time.perf_counter() - started
    judged = Target(name=target.value, tp=tp)
    return build_report(
        source, port, judged, library=library, proved=proved, seconds=seconds, step=step
    )


def _check(report: Report, require_coverage: float | None, strict: bool, command: str) -> None:
    """The demands of the command line, the gravest first. command: the plain one, for errors."""
    from neuron_autoport.rewrite.reasons import STATED

    name = report.model.name
    dropped = [f"{rule} in {c.name}" for c in report.classes for rule in c.dropped]
    if dropped:
        listed = ", ".join(dict.fromkeys(dropped))
        shown = command if "--diff" in command.split() else f"{command} --diff"
        step = f"{shown} shows the rewrites"
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
