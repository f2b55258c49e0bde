"""`autoport bench MODEL`: the same load on several implementations of vLLM's, as ratios from one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from neuron_autoport.cli.options import TrustOption

EPILOG = """[bold]Examples[/bold]

[cyan]autoport bench ./SmolLM2-135M --dtype float32[/cyan]: decode at batch 1 and 8, on all three

[cyan]autoport bench DIR --load prefill,decode,mixed,serve --batch 1,8,32 --plot out.png[/cyan]: everything

[cyan]autoport bench DIR --impl neuron-transformers --no-rules[/cyan]: what the rewrite itself is worth
"""
_IMPLS = ("vllm", "transformers", "neuron-transformers")
_DTYPES = ("auto", "float32", "float", "bfloat16", "float16", "half")  # vLLM's words


def bench_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder with weights, or a hub id.")
    ],
    impl: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Values of --model-impl; the first is the baseline."),
    ] = ",".join(_IMPLS),
    load: Annotated[
        str, typer.Option(metavar="KINDS", help="Of prefill, decode, mixed, serve.")
    ] = "decode",
    batch: Annotated[str, typer.Option(metavar="SIZES", help="Prompts at once.")] = "1,8",
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds, after one to warm up.")] = 3,
    dtype: Annotated[
        str, typer.Option(help="Of weights and computation, as vLLM names it.")
    ] = "auto",
    eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Without torch.compile, in every engine.")
    ] = False,
    no_rules: Annotated[
        bool, typer.Option("--no-rules", help="Also our implementation with nothing rewritten.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the ratios as a PNG.")
    ] = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Run the same load on several implementations, by turns, and print how their speeds compare.

    Every engine gets the same settings and prompts and is warmed up first. Seconds hold for this machine and run
    only; the ratios are the result. On a CPU without fast bfloat16 kernels choose --dtype float32.
    """
    from rich.console import Console

    from neuron_autoport.bench.command import Asked, bench
    from neuron_autoport.bench.view import check_plot, print_bench
    from neuron_autoport.bench.view import plot as draw

    impls, sizes = _words("--impl", impl), _numbers("--batch", batch)
    loads = [(kind, size) for kind in _words("--load", load) for size in sizes]
    asked = Asked(model, impls, loads, rounds, dtype, eager, no_rules, trust_remote_code)
    _check_known("--dtype", dtype, _DTYPES)
    if len(impls) == 1 and not no_rules:
        others = ",".join(i for i in _IMPLS if i not in impls)
        what = f"only {impls[0]}, with nothing to compare it with: --impl {impls[0]},{others}"
        raise typer.BadParameter(what, param_hint="--impl")
    if plot is not None:
        check_plot(plot)
    said = Console(stderr=True, highlight=False)
    with said.status("starting the engines") as status:
        report = bench(asked, status.update)
    if as_json:
        typer.echo(report.to_json())
    else:
        print_bench(report, Console(highlight=False))
    if plot is not None:  # last: a figure that cannot be written takes no result with it
        draw(report, plot)


def _words(option: str, text: str) -> list[str]:
    """`a,b` as a list without repeats."""
    from neuron_autoport.bench.loads import KINDS

    words = list(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
    known = KINDS if option == "--load" else (*_IMPLS, "auto")
    for word in words:
        _check_known(option, word, known)
    if not words:
        raise typer.BadParameter("name at least one", param_hint=option)
    return words


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(w) for w in text.split(",") if w.strip()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise typer.BadParameter(f"`{text}` is no list of sizes such as 1,8", param_hint=option)
    return found


def _check_known(option: str, word: str, known: Sequence[str]) -> None:
    from neuron_autoport.nearest import near

    if word not in known:
        what = f"`{word}` is none of {', '.join(known)}{near(word, known)}"
        raise typer.BadParameter(what, param_hint=option)
