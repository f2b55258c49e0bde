"""Part of the report's schema: the roofline model of one decode step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from neuron_autoport.report.schema_limits import Model


class RooflineTotal(Model):
    """Sums over the calls of one rank. seconds are modelled, not measured."""

    flops: int
    bytes: int
    seconds: float
    bound: Literal["memory", "compute"] = Field(description="what most of the time goes to")


class RooflineRow(Model):
    """Equal layers together, or what is in none of them."""

    name: str
    count: int
    fused: RooflineTotal
    unfused: RooflineTotal


class RooflineInfo(Model):
    """A model, not a measurement: what the chip's published peaks allow at best."""

    basis: Literal["model"] = "model"
    chip: str
    batch: int
    context: int
    tp: int
    rank_flops: float = Field(description="peak FLOP/s of one rank in the model's dtype")
    rank_memory: float = Field(description="peak bytes/s of one rank")
    source: str = Field(description="where the peaks are published")
    left_out: list[str]
    rows: list[RooflineRow]
    total: RooflineRow
