"""`autoport inspect --target CHIP --tp N --buckets 128,512`: the serving table of the Neuron host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from neuron_autoport.errors import DemandNotMet

if TYPE_CHECKING:
    from neuron_autoport.models.own_module import OwnModule
    from neuron_autoport.models.source import ModelSource
    from neuron_autoport.port import Port
    from neuron_autoport.report.schema import Report
    from neuron_autoport.rules.rule import Rule

HELP = (
    "Prefill lengths, such as 128,512: print what every call runs in as the Neuron runner would "
    "serve the model, on --tp ranks with --batch requests."
)


def read_buckets(text: str | None, target: str, is_module: bool) -> tuple[int, ...]:
    """The numbers of `--buckets`, in rising order; none if it was not given."""
    if text is None:
        return ()
    if target == "cpu" or is_module:
        raise typer.BadParameter("--buckets is for a whole model on --target trn2 or trn3")
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise typer.BadParameter(f"--buckets is numbers with commas, as 128,512; not `{text}`")
    return tuple(sorted({int(word) for word in words}))


def with_serving(
    report: Report,
    source: ModelSource | OwnModule,
    port: Port,
    rules: Iterable[Rule],
    buckets: tuple[int, ...],
    batch: int | None,
) -> Report:
    """The report with the serving table, if buckets are asked for."""
    from neuron_autoport.hosts.neuron.serving import Asked
    from neuron_autoport.models.source import ModelSource
    from neuron_autoport.report.serving import serving_info

    if not buckets or not isinstance(source, ModelSource):
        return report
    asked = Asked(report.target.name, report.target.tp, buckets, batch or 1)
    return report.model_copy(update={"serving": serving_info(source, port, rules, asked)})


def say_what_stops(report: Report) -> None:
    """Print what stops `port` and serving, if it is known without trying."""
    from neuron_autoport.models.plain import NEXT

    if report.model.unserved is not None:
        typer.echo(f"\nneither ported nor served: {report.model.unserved}\n  try: {NEXT}")


def demand_served(report: Report, command: str) -> None:
    """`--strict`: nothing of the serving table may be refused.

    Raises:
        DemandNotMet: naming what is.
    """
    table = report.serving
    if table is None:
        return
    refused = [table.unserved] if table.unserved else [r.message for r in table.refused]
    if refused:
        works = ", ".join(map(str, table.valid_tp))
        step = f"{command} --tp N with N of {works}" if works else command
        raise DemandNotMet(f"--strict: {'; '.join(refused)}.", report.model.name, step)
