"""Parts of the report's schema: places in the source, and what is said of one."""

from __future__ import annotations

from pydantic import Field

from neuron_autoport.report.schema_limits import Model


class Place(Model):
    """A source expression. `column` counts characters from 1; `end_column` is one past the last."""

    file: str
    line: int
    column: int
    end_column: int
    source: str = Field(description="the source line, as it is")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class WarningInfo(Model):
    """What is not as the configuration says."""

    code: str
    meaning: str
    message: str
    place: Place | None
