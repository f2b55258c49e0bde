"""What `autoport inspect` writes: the report as text or for another tool, a page, what changed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from neuron_autoport.errors import DemandNotMet, ModelError

if TYPE_CHECKING:
    from rich.console import Console

    from neuron_autoport.port import Port
    from neuron_autoport.report.schema import Report


class FormatName(StrEnum):
    """How the report is printed."""

    text = "text"
    json = "json"
    sarif = "sarif"
    github = "github"
    markdown = "markdown"


@dataclass(frozen=True)
class Output:
    """What was asked for. diff: the source changes instead of the report; old: a report to compare with."""

    format: FormatName
    diff: bool
    html: Path | None
    old: Report | None

    def write(self, report: Report, port: Port, folder: Path | None) -> None:
        """Print, and write the page.

        Args:
            folder: where the model's own code lies.

        Raises:
            ModelError: the page cannot be written.
        """
        if self.html is not None:
            from neuron_autoport.report.page.build import inspect_page

            write_text(self.html, inspect_page(report, port, folder))
        if self.old is not None:
            self._compare(self.old, report)
        elif self.format is FormatName.text:
            self._print(report, port, folder)
        else:
            typer.echo(_text(report, self.format))

    def demand_nothing_lost(self, report: Report, command: str) -> None:
        """Of a comparison under --strict.

        Raises:
            DemandNotMet: something that was fused is so no more.
        """
        from neuron_autoport.report.changes import changes

        lost = [c.text for c in changes(self.old, report) if c.lost] if self.old else []
        if lost:
            what = f"--strict: {len(lost)} changes for the worse: {'; '.join(lost)}."
            step = f"{command} shows the report as it is now"
            raise DemandNotMet(what, report.model.name, step)

    def _print(self, report: Report, port: Port, folder: Path | None) -> None:
        from neuron_autoport.report.diff import class_diffs, print_diffs
        from neuron_autoport.report.terminal import (
            print_header,
            print_proof,
            print_report,
            print_summary,
        )

        console = _console()
        if not self.diff:
            print_report(report, console)
            return
        print_header(report, console)
        console.print()
        print_diffs(class_diffs(port, folder), console)
        if report.model.kind == "module":
            print_proof(report, console)
        print_summary(report, console)

    def _compare(self, old: Report, new: Report) -> None:
        from rich.text import Text

        from neuron_autoport.report.changes import changes

        console = _console()
        found = list(changes(old, new))
        for change in found:
            sign, style = ("✗", "red") if change.lost else ("·", "")
            console.print(Text(f"{sign} {change.text}", style=style), soft_wrap=True)
        if not found:
            console.print("nothing changed")


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _text(report: Report, name: FormatName) -> str:
    from neuron_autoport.report import formats

    if name is FormatName.json:
        return report.to_json()
    made: str = getattr(formats, name.value)(report)
    return made


def write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all: an interrupted run leaves the old one.

    Raises:
        ModelError: it cannot be written.
    """
    from neuron_autoport.models.python_file import write_whole

    try:
        write_whole(file, text)
    except (OSError, ValueError) as error:  # ValueError: a path without a name, such as `.`
        why = error.strerror if isinstance(error, OSError) else error
        step = f"mkdir -p {file.parent}" if not file.parent.exists() else "name another file"
        raise ModelError(f"The file cannot be written: {why}.", str(file), step) from None
