"""Parts of the report's schema: the base of its models, limits and kernels."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Frozen, closed, and printed under its aliases."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)


class Limit(Model):
    """A limit of the target's kernel that does not hold: the call runs in torch there."""

    text: str
    figures: str
    holds_from_tp: int | None


class KernelInfo(Model):
    """An NKI kernel of an NK function that the site calls."""

    name: str = Field(description="its package and name, as `neuron_autoport.rms_norm`")
    limits: list[str]
    evidence: str = Field(description="how far it is checked")
    runs: str = Field(description="`kernel: NAME` on the target, or `torch: ` and why")
