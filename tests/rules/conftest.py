"""The fixture of the command line's tests, for tests of commands about rules."""

from __future__ import annotations

from tests.cli.conftest import run

__all__ = ["run"]
