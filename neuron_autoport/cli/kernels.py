"""`autoport kernels QUERY`: which kernels there are for an operation, and whether they fit a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuron_autoport.cli.options import RulesOption, TpOption, TrustOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_autoport.catalogue.entry import Entry
    from neuron_autoport.catalogue.fit import Fit
    from neuron_autoport.catalogue.parts import Part
    from neuron_autoport.catalogue.search import Hit, Query

EPILOG = """[bold]Examples[/bold]

[cyan]autoport kernels attention head_dim 256[/cyan]: what takes heads of 256

[cyan]autoport kernels rmsnorm decode[/cyan]: a word and a phase

[cyan]autoport kernels moe nkilib trn3[/cyan]: of one source, for one chip

[cyan]autoport kernels attention --for gemma2[/cyan]: which of them fit this model, and why not

[cyan]autoport kernels[/cyan]: all, one line each
"""

_MEANING = (
    "fits: its limits hold for the model's sizes and the model asks for nothing it lacks. "
    "That it computes the same is for a rule and its proof."
)


def kernels_command(
    query: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUERY]...",
            help="Words (attention, rope, ...), sizes (head_dim 256), a phase (prefill, decode), a "
            "chip (trn2, trn3), a source (nf, own, nkilib).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="MODEL", help="Judge for this model: a folder, model type or hub id."
        ),
    ] = None,
    tp: TpOption = 1,
    target: Annotated[str, typer.Option(help="The chip: trn2 or trn3.")] = "trn2",
    rules: RulesOption = None,
    trust_remote_code: TrustOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
) -> None:
    """Search the catalogue of kernels: NF functions, NKI library kernels and our own.

    Limits are those of the kernels, not of their torch forms. Nothing here was run on a device: what is said
    to be verified is verified in simulation.
    """
    from neuron_autoport.catalogue.load import catalogue
    from neuron_autoport.catalogue.search import parse_query, search
    from neuron_autoport.catalogue.sizes import TARGETS

    if target not in TARGETS:
        raise typer.BadParameter(f"{target} is none of {', '.join(TARGETS)}")
    entries = catalogue()
    asked = parse_query(" ".join(query or ()))
    hits = search(entries, asked)
    parts = None if model is None else _parts(model, rules or [], tp, trust_remote_code)
    fits = None if parts is None else _judged(hits, parts, tp, target, asked.phases)
    if fits is not None and not query:  # without a query: what the model has a use for
        hits = [h for h in hits if fits[h.entry.name]]
    if as_json:
        typer.echo(_json(asked, hits, fits))
        return
    head = f"{len(hits)} of {len(entries)} kernels" + (f": {asked}" if query else "")
    about = "" if model is None else f"   for {model} on {target}" + (f", tp {tp}" * (tp > 1))
    typer.echo(typer.style(head, bold=True) + about)
    if not query and fits is None:
        _list(hits)
        return
    for hit in hits:
        typer.echo()
        _show(hit, asked, None if fits is None else fits[hit.entry.name])
    if fits is not None:
        typer.echo(typer.style(f"\n{_MEANING}", dim=True))


def _parts(model: str, rules: list[Path], tp: int, trust: bool) -> tuple[Part, ...]:
    from neuron_autoport.catalogue.parts import parts_of
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.port import port_model
    from neuron_autoport.rules.sources import load_library

    source = load_model_config(model, trust_remote_code=trust)
    return parts_of(port_model(source, load_library(rules, trust_code=trust)), tp)


def _judged(
    hits: Sequence[Hit], parts: tuple[Part, ...], tp: int, target: str, phases: tuple[str, ...]
) -> dict[str, list[Fit]]:
    from neuron_autoport.catalogue.fit import judge

    return {h.entry.name: judge(h.entry, parts, tp=tp, target=target, phases=phases) for h in hits}


def _json(asked: Query, hits: Sequence[Hit], fits: dict[str, list[Fit]] | None) -> str:
    rows: list[dict[str, Any]] = []
    for hit in hits:
        row = hit.entry.to_json()
        row["unmet"] = [need.limit for need in hit.unmet]
        if fits is not None:
            row["model"] = [fit.to_json() for fit in fits[hit.entry.name]]
        rows.append(row)
    query = {
        "words": list(asked.words), "sizes": asked.sizes, "phases": list(asked.phases),
        "targets": list(asked.targets), "kinds": list(asked.kinds),
    }  # fmt: skip
    return json.dumps({"query": query, "kernels": rows}, indent=2, ensure_ascii=False)


def _list(hits: Sequence[Hit]) -> None:
    width = max(len(h.entry.name) for h in hits)
    for hit in sorted(hits, key=lambda h: h.entry.name):
        typer.echo(f"{hit.entry.name.ljust(width)}  {hit.entry.does}")


def _show(hit: Hit, asked: Query, fits: list[Fit] | None) -> None:
    from neuron_autoport.catalogue.entry import KINDS

    entry = hit.entry
    chips = "" if len(entry.targets) > 1 else f", {entry.targets[0]} only"
    facts = f"{KINDS[entry.kind]}, {' and '.join(entry.phases)}{chips}"
    typer.echo(f"{typer.style(entry.name, bold=True)}  {typer.style(facts, dim=True)}")
    _line(entry.does)
    if entry.takes:
        _line(f"takes {entry.takes}" + (f" → {entry.gives}" if entry.gives else ""))
    for need in entry.needs:
        tail = "" if need.phase is None else f"  ({need.phase})"
        mark = "✗" if need in hit.unmet else "·"
        _line(f"{mark} {need.limit}{tail}" + (f"   {need.why}" if need.why else ""))
    for text in entry.call_needs:
        _line(f"· {text}")
    for note in entry.notes:
        _line(f"- {note}")
    _line(f"{entry.module}; {entry.evidence}", dim=True)
    if hit.unmet:
        sizes = ", ".join(f"{n} {v}" for n, v in asked.sizes.items())
        _line(f"does not take {sizes}: there {entry.outside}")
    if fits is not None:
        _show_fits(entry, fits)


def _show_fits(entry: Entry, fits: list[Fit]) -> None:
    from neuron_autoport.catalogue.entry import PARTS
    from neuron_autoport.catalogue.fit import merged

    if not fits:
        what = " or ".join(PARTS[p] for p in entry.part)
        missing = f"no rule found its part in the model ({what})"
        _line(f"not judged: {missing if what else 'it is for no part that is looked for'}")
    for fit in merged(fits):
        part = fit.part
        place = f"{part.class_name} ×{part.count}" + (f" in {fit.phase}" if fit.phase else "")
        sizes = ", ".join(f"{name} {value}" for name, value in part.sizes.items())
        if fit.fits:
            mark, text = typer.style("fits", fg="green"), f"{place}: {sizes}"
            _line(f"{mark} {text}")
            if fit.open:
                _line(f"     asked of each call: {', '.join(fit.open)}", dim=True)
            if fit.unknown:
                _line(f"     not told by the traced model: {', '.join(fit.unknown)}", dim=True)
        else:
            _line(f"{typer.style('does not fit', fg='red')} {place}: {'; '.join(fit.reasons)}")


def _line(text: str, dim: bool = False) -> None:
    typer.echo(typer.style(f"  {text}", dim=dim) if dim else f"  {text}")
