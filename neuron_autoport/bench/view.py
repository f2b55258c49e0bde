"""The result as text with bars, and as a PNG."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuron_autoport.bench.engines import BenchError
from neuron_autoport.bench.schema import BenchReport, Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR = 24


def print_bench(report: BenchReport, console: Console) -> None:
    """A table per load: rate, ratio to the baseline with its spread, and a bar."""
    mode = "eager" if report.eager else "compiled"
    console.print(
        Text(f"{report.model} · {report.dtype} · {mode} · {report.rounds} rounds", "bold")
    )
    said = f"{report.machine}; ratios are to {report.baseline}, of the same round"
    console.print(Text(said, style="dim"))
    if report.environment:
        told = ", ".join(f"{name}={value}" for name, value in report.environment.items())
        console.print(Text(f"every engine had {told}", style="dim"))
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
        unsure = [r.impl for r in load.results if r.ratio.least < 1 < r.ratio.most]
        if unsure:
            said = f"faster than {report.baseline} in one round and slower in another: {', '.join(unsure)}"
            console.print(Text(f"{said}; --rounds {3 * report.rounds} tells more", style="yellow"))
    console.print()
    for engine in report.engines:
        said = f"{engine.impl} ({engine.how}): ready after {engine.ready:.1f} s, peak {engine.memory / 2**20:.0f} MiB"
        console.print(Text(said, style="dim"))


def _range(result: Measured) -> str:
    return f"{result.ratio.least:.2f} … {result.ratio.most:.2f}"


def check_plot(file: Path) -> None:
    """Before anything is measured: can a figure be drawn and put there?

    Raises:
        BenchError: matplotlib is not there, no folder is, or the name is no PNG's.
    """
    if importlib.util.find_spec("matplotlib") is None:
        what, step = (
            "A plot takes matplotlib, which is not installed.",
            "pip install neuron-autoport[bench]",
        )
        raise BenchError(what, "--plot", step)
    if not file.parent.is_dir():
        raise BenchError(f"There is no folder {file.parent}.", "--plot", f"mkdir -p {file.parent}")
    if file.suffix.lower() != ".png" or file.is_dir():
        better = file / "bench.png" if file.is_dir() else file.with_suffix(".png")
        raise BenchError(f"{file} is no name of a PNG file.", "--plot", f"--plot {better}")


def plot(report: BenchReport, file: Path) -> None:
    """Write `figure_of` as a PNG.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        figure_of(report).savefig(file, dpi=150)
    except OSError as error:
        what = f"The plot cannot be written: {error.strerror}."
        raise BenchError(what, str(file), f"df -h {file.parent}") from None


def figure_of(report: BenchReport) -> Figure:
    """A group of bars per load, their height the ratio to the baseline, whiskers the spread.

    Bars of an implementation that answered other tokens than the baseline are hatched.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 + 1.6 * len(report.loads), 4), layout="constrained")
    axes = figure.add_subplot()
    impls = [r.impl for r in report.loads[0].results]
    width = 0.8 / len(impls)
    for number, impl in enumerate(impls):
        results = [load.results[number] for load in report.loads]
        ratios = [r.ratio for r in results]
        alike = all(r.same_tokens for r in results)
        bars = axes.bar(
            [i + number * width for i in range(len(ratios))],
            [r.median for r in ratios],
            width,
            label=impl if alike else f"{impl} (hatched: other tokens)",
            yerr=[[r.median - r.least for r in ratios], [r.most - r.median for r in ratios]],
            capsize=3,
        )
        for bar, result in zip(bars, results, strict=True):
            bar.set_hatch("" if result.same_tokens else "//")
    middle = [i + width * (len(impls) - 1) / 2 for i in range(len(report.loads))]
    axes.set_xticks(middle, [load.load for load in report.loads])
    axes.set_ylabel(f"throughput over {report.baseline}")
    axes.axhline(1, linewidth=0.8, color="grey")
    axes.set_title(f"{Path(report.model).name}, {report.dtype}, {report.machine}")
    figure.legend(loc="outside lower center")  # over no bar
    return figure
