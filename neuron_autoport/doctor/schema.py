"""What `autoport doctor --json` prints, as pydantic models; `docs/doctor.md` explains it.

Adding a field keeps the schema number; changing the meaning or type of one, or taking one away, raises it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)


class Item(_Model):
    """One thing that is looked at. found: version or state; null if it is absent."""

    name: str
    found: str | None
    note: str


class Problem(_Model):
    """Something that would not work. mend: one command of a shell, or lines of it."""

    code: str
    what: str
    why: str
    mend: str


class Verdict(_Model):
    """What `vllm serve MODEL --model-impl neuron-transformers` would do here, and why."""

    works: bool
    host: Literal["none", "vllm", "neuron"]
    nf: Literal["torch", "kernels", "simulator", "compile only"]
    what: str
    why: list[str]


class Setting(_Model):
    """A shell variable or an option for one purpose."""

    name: str
    value: str
    why: str
    set_to: str | None = Field(description="its value now; null if it is not set, or an option")


class Recipe(_Model):
    """What to set for one purpose."""

    purpose: str
    settings: list[Setting]
    command: str


class Diagnosis(_Model):
    """All that `autoport doctor` says."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    items: list[Item]
    problems: list[Problem]
    verdict: Verdict
    recipes: list[Recipe]

    @property
    def exit_code(self) -> int:
        """0 nothing is wrong; 1 something would not work."""
        return 0 if not self.problems and self.verdict.works else 1

    def to_json(self) -> str:
        """The value as JSON, two spaces deep."""
        return self.model_dump_json(by_alias=True, indent=2)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of what `--json` prints."""
    return Diagnosis.model_json_schema(by_alias=True)
