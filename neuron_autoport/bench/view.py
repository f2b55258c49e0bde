"""The result as text with bars, and as a PNG."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuron_autoport.bench.engines import BenchError
from neuron_autoport.bench.schema import BenchReport, Measured

_BAR = 24


def print_bench(report: BenchReport, console: Console) -> None:
    """A table per load: rate, ratio to the baseline with its spread, and a bar."""
    mode = "eager" if report.eager else "compiled"
    console.print(
        Text(f"{report.model} · {report.dtype} · {mode} · {report.rounds} rounds", "bold")
    )
    said = f"{report.machine}; ratios are to {report.baseline}, of the same round"
    console.print(Text(said, style="dim"))
    for load in report.loads:
        console.print()
        console.print(Text(load.load, style="bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        table.add_column("implementation", no_wrap=True)
        for name in ("tokens/s", "ratio", "least … most"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("")
        most = max(r.rate.median for r in load.results)
        for r in load.results:
            bar = "█" * max(1, round(_BAR * r.rate.median / most))
            table.add_row(r.impl, f"{r.rate.median:.1f}", f"{r.ratio.median:.2f}", _range(r), bar)
        console.print(table)
        other = [r.impl for r in load.results if not r.same_tokens]
        if other:
            said = f"other tokens than {report.baseline} in some round: {', '.join(other)}"
            console.print(Text(said, style="yellow"))
    console.print()
    for engine in report.engines:
        said = f"{engine.impl} ({engine.how}): ready after {engine.ready:.1f} s, peak {engine.memory / 2**20:.0f} MiB"
        console.print(Text(said, style="dim"))


def _range(result: Measured) -> str:
    return f"{result.ratio.least:.2f} … {result.ratio.most:.2f}"


def plot(report: BenchReport, file: Path) -> None:
    """A PNG: a group of bars per load, their height the ratio to the baseline, whiskers the spread.

    Raises:
        BenchError: matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        step = "pip install neuron-autoport[bench]"
        raise BenchError(
            "A plot takes matplotlib, which is not installed.", str(file), step
        ) from None
    figure = Figure(figsize=(2 + 1.6 * len(report.loads), 4), layout="constrained")
    axes = figure.add_subplot()
    impls = [r.impl for r in report.loads[0].results]
    width = 0.8 / len(impls)
    for number, impl in enumerate(impls):
        found = [load.results[number].ratio for load in report.loads]
        places = [i + number * width for i in range(len(found))]
        below = [r.median - r.least for r in found]
        above = [r.most - r.median for r in found]
        heights = [r.median for r in found]
        axes.bar(places, heights, width, label=impl, yerr=[below, above], capsize=3)
    middle = [i + width * (len(impls) - 1) / 2 for i in range(len(report.loads))]
    axes.set_xticks(middle, [load.load for load in report.loads])
    axes.set_ylabel(f"throughput over {report.baseline}")
    axes.axhline(1, linewidth=0.8, color="grey")
    axes.set_title(f"{Path(report.model).name}, {report.dtype}, {report.machine}")
    axes.legend()
    figure.savefig(file, dpi=150)
