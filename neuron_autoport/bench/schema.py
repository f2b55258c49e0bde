"""What `autoport bench --json` prints, as pydantic models."""

from __future__ import annotations

from statistics import median
from typing import Literal

from pydantic import Field

from neuron_autoport.report.schema_limits import Model


class Spread(Model):
    """Of several rounds."""

    median: float
    least: float
    most: float


def spread(values: list[float]) -> Spread:
    """Median, least and most."""
    return Spread(median=median(values), least=min(values), most=max(values))


class Measured(Model):
    """One implementation under one load."""

    impl: str
    seconds: Spread
    each: list[float] = Field(description="seconds of each round")
    rate: Spread = Field(description="tokens per second: of prompts for prefill, else answered")
    ratio: Spread = Field(description="its rate over the baseline's in the same round")
    same_tokens: bool = Field(description="it answered what the baseline answered, in every round")

    def over(self, other: Measured) -> Spread:
        """How many times as fast it is, round by round."""
        return spread([b / s for b, s in zip(other.each, self.each, strict=True)])


class LoadResult(Model):
    load: str
    tokens: int
    results: list[Measured]


class EngineInfo(Model):
    """ready: seconds from the process's start to one that can be asked. memory: peak bytes of all its processes."""

    impl: str
    how: Literal["engine", "server"]
    ready: float
    memory: int


class BenchReport(Model):
    """Ratios of one run; the seconds hold for this machine and this run only."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    model: str
    dtype: str
    eager: bool
    rounds: int
    baseline: str
    versions: dict[str, str]
    machine: str
    environment: dict[str, str] = Field(
        default={}, description="variables set that change what is measured, for every engine"
    )
    engines: list[EngineInfo]
    loads: list[LoadResult]

    def to_json(self) -> str:
        """The JSON text, indented by two."""
        return self.model_dump_json(by_alias=True, indent=2)
