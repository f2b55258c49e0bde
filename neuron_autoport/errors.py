"""Errors a user can act on: what is wrong, where, and what to do next.

Every error that reaches the command line derives from `AutoportError`; the CLI prints its three parts and
exits with `exit_code` instead of showing a traceback. Exit codes: 1 a demanded coverage was not met,
2 usage or load error, 3 a rewrite failed its proof.
"""

from __future__ import annotations


class AutoportError(Exception):
    """Something the user can mend.

    Args:
        what: one sentence, what is wrong.
        where: a file, `file:line:column`, model name or config field; None if there is no place.
        next_step: what to do next, ideally a command.
    """

    exit_code = 2

    def __init__(self, what: str, where: str | None = None, next_step: str | None = None) -> None:
        self.what = what
        self.where = where
        self.next_step = next_step
        super().__init__(self.text())

    def text(self) -> str:
        """The message as printed: `what`, then `where` and `next_step` on lines of their own."""
        lines = [self.what]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.next_step:
            lines.append(f"  try: {self.next_step}")
        return "\n".join(lines)


class ModelError(AutoportError):
    """The model cannot be found, read, or is of a kind that cannot be ported."""


class RuleError(AutoportError):
    """A rule file is wrong."""


class ProofFailed(AutoportError):
    """A rewrite did not compute what the original computes."""

    exit_code = 3


class DemandNotMet(AutoportError):
    """`--strict` or a coverage demand was not met."""

    exit_code = 1
