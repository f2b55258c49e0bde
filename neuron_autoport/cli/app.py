"""The command `autoport`. One file per command; this one gathers them and shows their errors.

Nothing of torch is imported before a command runs, so that `--help` is quick.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from neuron_autoport import __version__
from neuron_autoport.cli.bench import EPILOG as BENCH_EPILOG
from neuron_autoport.cli.bench import bench_command
from neuron_autoport.cli.diff import EPILOG as DIFF_EPILOG
from neuron_autoport.cli.diff import diff_command
from neuron_autoport.cli.doctor import EPILOG as DOCTOR_EPILOG
from neuron_autoport.cli.doctor import doctor_command
from neuron_autoport.cli.explain import EPILOG as EXPLAIN_EPILOG
from neuron_autoport.cli.explain import explain_command
from neuron_autoport.cli.inspect import EPILOG, inspect_command
from neuron_autoport.cli.kernels import EPILOG as KERNELS_EPILOG
from neuron_autoport.cli.kernels import kernels_command
from neuron_autoport.cli.port import EPILOG as PORT_EPILOG
from neuron_autoport.cli.port import port_command
from neuron_autoport.cli.rules import rules_app
from neuron_autoport.cli.validate import EPILOG as VALIDATE_EPILOG
from neuron_autoport.cli.validate import validate_command
from neuron_autoport.errors import AutoportError


class Commands(TyperGroup):
    """The group of all commands: an `AutoportError` becomes a message and its exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """As typer, but says where an option of a command belongs that stands before it."""
        first = args[0].partition("=")[0] if args else ""
        if first.startswith("-") and first not in _options(self.params):
            takers = [n for n, c in self.commands.items() if first in _options(c.params)]
            meant = next((a for a in args if a in takers), None) or next(iter(takers), None)
            if meant is not None:
                ctx.fail(f"{first} belongs behind its command: autoport {meant} ... {first}")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Any other exception is a fault of ours and keeps its traceback."""
        try:
            return super().invoke(ctx)
        except AutoportError as error:
            print_error(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as stop:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(128 + (stop.args[0] if stop.args else signal.SIGINT)) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            print_error(AutoportError(f"{error.strerror}.", error.filename, "df -h"))
            raise typer.Exit(AutoportError.exit_code) from None


def _options(parameters: list[Any]) -> set[str]:
    return {word for p in parameters for word in (*p.opts, *p.secondary_opts) if word[:1] == "-"}


def print_error(error: AutoportError) -> None:
    """What is wrong, where, and what to do next, on stderr."""
    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble(("error: ", "bold red"), error.what), soft_wrap=True)
    for label, value in (("at", error.where), ("try", error.next_step)):
        if value:
            console.print(Text.assemble((f"  {label + ':':<5}", "dim"), value), soft_wrap=True)


app = typer.Typer(
    name="autoport",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A first look: [bold]autoport inspect llama[/bold]",
)
app.command("inspect", epilog=EPILOG)(inspect_command)
app.command("port", epilog=PORT_EPILOG)(port_command)
app.command("validate", epilog=VALIDATE_EPILOG)(validate_command)
app.command("bench", epilog=BENCH_EPILOG)(bench_command)
app.add_typer(rules_app, name="rules")
app.command("kernels", epilog=KERNELS_EPILOG)(kernels_command)
app.command("explain", epilog=EXPLAIN_EPILOG)(explain_command)
app.command("diff", epilog=DIFF_EPILOG)(diff_command)
app.command("doctor", epilog=DOCTOR_EPILOG)(doctor_command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"autoport {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Rewrite Hugging Face models so that they call the vLLM Neuron plugin's fused functions."""


def _end(number: int, _: Any) -> None:
    """As Ctrl-C, so that what a command started ends with it."""
    raise KeyboardInterrupt(number)


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an ASCII terminal gets `?`, not an error
            stream.reconfigure(errors="replace")
    # Importing torch and transformers makes objects by the million, none of them garbage: looking
    # through them again and again is a fifth of the time of a short command.
    gc.disable()
    code = 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else somebody wants it ignored, as nohup
            signal.signal(number, _end)
    try:
        app()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    # Nor are those objects taken apart one by one at the end: that would cost another second.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # said already: the disk is full, or nobody reads
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
