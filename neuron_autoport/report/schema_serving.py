"""Part of the report's schema: how the model would be served on a number of ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from neuron_autoport.report.schema_limits import Model


class ServingCall(Model):
    """One call of one class in one phase and bucket."""

    phase: Literal["prefill", "chunked prefill", "decode"]
    tokens: int = Field(description="of a prefill call; requests of a decode step")
    class_name: str
    count: int = Field(description="modules of the class")
    call: str
    runs: str = Field(
        description="`kernel`, `kernel: NAME`, or `torch: ` and why; of what could be a part of another call "
        "`in CALL`, or `apart: ` and why"
    )


class ServingRefusal(Model):
    """What cannot work on this many ranks, or costs the decode kernel."""

    what: Literal["heads", "vocabulary", "kv_heads", "bucket", "batch"]
    message: str
    instead: str


class ServingInfo(Model):
    """Every call, phase and bucket, and what is refused. From sizes alone: nothing was tried."""

    chip: str
    tp: int
    buckets: list[int]
    batch: int
    calls: list[ServingCall]
    refused: list[ServingRefusal]
    valid_tp: list[int] = Field(description="sizes of tensor parallel that can work")
    decode_kernel_tp: list[int] = Field(
        description="of those, the ones that keep the decode kernel"
    )
    kv_heads: dict[str, int] = Field(description="per rank, by attention class")
    kv_copies: dict[str, int] = Field(description="ranks that hold the same key/value heads")
    whole: dict[str, str] = Field(description="classes every rank has all of, and why")
    unserved: str | None = Field(default=None, description="why the runner cannot drive the model")
