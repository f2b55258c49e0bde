"""The roofline of a port as part of the report, and as text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neuron_autoport.port import Port
from neuron_autoport.report.roofline.chips import CHIPS, RANKS_PER_CHIP
from neuron_autoport.report.roofline.model import Row, Step, Total, roofline
from neuron_autoport.report.schema_roofline import RooflineInfo, RooflineRow, RooflineTotal

LEFT_OUT = ["collectives between ranks", "launches and the host", "what caches on the chip save"]


def roofline_info(port: Port, chip: str, step: Step) -> RooflineInfo:
    """The roofline of one decode step.

    Args:
        chip: a key of CHIPS.
    """
    peaks = CHIPS[chip]
    dtype = getattr(port.model, "dtype", torch.bfloat16)
    rows = roofline(port, peaks, step, dtype)
    total = Row("total", 1, Total(), Total())
    for row in rows:
        total.fused, total.unfused = total.fused.plus(row.fused), total.unfused.plus(row.unfused)
    return RooflineInfo(
        chip=chip,
        batch=step.batch,
        context=step.context,
        tp=step.tp,
        rank_flops=peaks.rank_flops(dtype),
        rank_memory=peaks.rank_memory,
        source=peaks.source,
        left_out=LEFT_OUT,
        rows=[_row(row) for row in rows],
        total=_row(total),
    )


def _row(row: Row) -> RooflineRow:
    return RooflineRow(
        name=row.name, count=row.count, fused=_total(row.fused), unfused=_total(row.unfused)
    )


def _total(total: Total) -> RooflineTotal:
    return RooflineTotal(
        flops=round(total.flops),
        bytes=round(total.bytes),
        seconds=total.seconds,
        bound="memory" if 2 * total.memory_bound >= total.seconds else "compute",
    )


def roofline_lines(info: RooflineInfo | None) -> Iterator[Padding]:
    """What was assumed, then a row per group of layers: fused, beside unfused."""
    if info is None:
        return
    said = (
        f"A model, not a measurement: max(FLOPs / {_si(info.rank_flops, 'FLOP/s')}, bytes / "
        f"{_si(info.rank_memory, 'B/s')}) per call and rank, {RANKS_PER_CHIP} ranks a chip; peaks: "
        f"{info.source}. Left out: {', '.join(info.left_out)}."
    )
    yield Padding(Text(said, style="dim"), (0, 0, 0, 2))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("per rank and step", overflow="fold")
    for name in ("FLOPs", "bytes", "bound by", "time", "unfused"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in [*info.rows, info.total]:
        f = row.fused
        table.add_row(
            row.name, _si(f.flops, ""), _si(f.bytes, "B"), f.bound, _time(f.seconds), _time(row.unfused.seconds)
        )  # fmt: skip
    yield Padding(table, (0, 0, 0, 2))
    yield Padding(Text(_per_token(info), style="bold"), (0, 0, 0, 2))


def _per_token(info: RooflineInfo) -> str:
    seconds, before = info.total.fused.seconds, info.total.unfused.seconds
    return (
        f"at best {_time(seconds)} a step, {_time(seconds / info.batch)} a token; "
        f"{before / seconds:.2f} × that unfused"
    )


def _si(value: float, unit: str) -> str:
    """`725 GB/s`: three significant digits and an SI prefix."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:#.3g}".rstrip(".") + f" {prefix}{unit}"
    return f"{value:.0f} {unit}"


def _time(seconds: float) -> str:
    """`2.61 ms`, `45.3 µs`."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "µs")
    return f"{value:.3g} {unit}"
