"""What `autoport diff --json` prints, as pydantic models; `docs/diff.md` explains it.

The terminal text is drawn from the same value. Adding a field keeps the schema number; changing the meaning
or the type of one, or taking one away, raises it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from neuron_autoport.report.schema import ModelInfo, Versions


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)


class FieldDiff(_Model):
    """A configuration field. A side that does not have it has no value and `in_` false."""

    name: str = Field(description="dotted where it lies in another field")
    point: int | None = Field(description="the point of the checklist it belongs to, if any")
    in_a: bool
    in_b: bool
    a: JsonValue
    b: JsonValue


class Trait(_Model):
    """One thing that was read from both graphs."""

    key: str
    point: int
    label: str
    a: str
    b: str
    differs: bool


class Disagreement(_Model):
    """A configuration field that says something else than the graph."""

    side: Literal["a", "b"]
    field: str
    value: JsonValue
    graph: str


class Handler(_Model):
    """What of this package does it: a rule with its call and sites in B, a refusal, or a host."""

    kind: Literal["rule", "refused", "host"]
    name: str
    text: str


class Point(_Model):
    """One of the eight points of the checklist, for a port of B by the example of A.

    traits, fields: names of those that differ. means: what to look at; one line for each difference.
    """

    number: int
    name: str
    touches: str
    differs: bool
    traits: list[str]
    fields: list[str]
    means: list[str]
    handled: list[Handler]


class StructureRow(_Model):
    """A line of both module trees, equal siblings folded. null: this side has none here.

    same: both have it, and if it is a linear map, of the same sizes. Names of classes do not count.
    """

    depth: int
    a: str | None
    b: str | None
    same: bool


class Comparison(_Model):
    """Two models side by side."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    versions: Versions
    a: ModelInfo
    b: ModelInfo
    points: list[Point]
    traits: list[Trait]
    disagreements: list[Disagreement]
    fields: list[FieldDiff]
    structure: list[StructureRow]

    def to_json(self) -> str:
        """The value as JSON, two spaces deep."""
        return self.model_dump_json(by_alias=True, indent=2)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of what `--json` prints."""
    return Comparison.model_json_schema(by_alias=True)
