"""What a run is asked to do, and the buckets that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tests.neuron.faults import NONE, Faults

SEGMENT_SIZES = (512, 1024, 2048, 4096, 8192)
PARTITION = 128


@dataclass(frozen=True)
class Options:
    """One runner's settings; the defaults suit a tiny model.

    batch: max_num_seqs; buckets: prefill lengths (single-shot needs the last >= max_model_len).
    chunk: segment size of segmented prefill, then the only prefill length; None: single-shot.
    max_model_len: 0: the last bucket, or four chunks. seq_buckets: decode batches; (): powers of
    two. context_buckets: decode_context_length_buckets. num_blocks: 0: enough for `batch` requests.
    max_logprobs: not 0: forward must also give the gathered logits.
    mask: "" no logit masks; "full" [R, V] or "local" [R, V / tp] masks (structured outputs).
    semantics: how the double treats the corners where its kernel and torch forms differ.
    allow_traps: whether a call may step into a documented trap.
    neuron_config: more of its fields. additional: what stands beside it in additional_config.
    simulate: NKI kernels run, in the simulator of tests/nki_sim; not with `compile`.
    """

    tp: int = 1
    batch: int = 4
    buckets: tuple[int, ...] = (128, 256)
    chunk: int | None = None
    max_model_len: int = 0
    seq_buckets: tuple[int, ...] = ()
    context_buckets: tuple[int, ...] = ()
    block_size: int = 32
    num_blocks: int = 0
    dtype: torch.dtype = torch.float32
    on_device_sampling: bool = True
    max_logprobs: int = 0
    mask: Literal["", "full", "local"] = ""
    compile: bool = True
    faults: Faults = NONE
    semantics: Literal["torch", "kernel"] = "torch"
    compute: torch.dtype = torch.float64
    allow_traps: bool = False
    simulate: bool = False
    ep_degree: int = 1
    expert_parallel: bool = False
    neuron_config: dict[str, Any] = field(default_factory=dict)
    additional: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.simulate and self.compile:
            raise ValueError("the simulator runs kernels eagerly: simulate needs compile=False")
        if self.chunk is not None and self.chunk not in SEGMENT_SIZES:
            raise ValueError(f"chunk must be one of {SEGMENT_SIZES}, got {self.chunk}")
        if self.chunk is None and self.prefill_buckets[-1] < self.longest:
            raise ValueError(
                "single-shot prefill needs max_num_batched_tokens (the last bucket) >= max_model_len"
            )
        if self.decode_batches[-1] < self.batch:
            raise ValueError("the last decode batch must be max_num_seqs or more")
        if any(c % PARTITION or c >= self.longest for c in self.context_buckets):
            raise ValueError("decode context buckets: multiples of 128 below max_model_len")

    @property
    def longest(self) -> int:
        """max_model_len."""
        if self.max_model_len:
            return self.max_model_len
        return self.buckets[-1] if self.chunk is None else 4 * self.chunk

    @property
    def prefill_buckets(self) -> tuple[int, ...]:
        """The lengths a prefill step may have."""
        return self.buckets if self.chunk is None else (self.chunk,)

    @property
    def decode_batches(self) -> tuple[int, ...]:
        """The numbers of requests a decode step may have; the last is `batch`."""
        if self.seq_buckets:
            return self.seq_buckets
        sizes = [1]
        while sizes[-1] * 2 < self.batch:
            sizes.append(sizes[-1] * 2)
        return (*sizes, self.batch) if self.batch > 1 else (1,)

    @property
    def width(self) -> int:
        """Blocks per request: max_model_len up to a multiple of 128 / block_size blocks."""
        step = max(1, PARTITION // self.block_size)
        blocks = -(-self.longest // self.block_size)
        return -(-blocks // step) * step

    @property
    def context_widths(self) -> tuple[int, ...]:
        """The widths, in blocks, that a decode step's table of a full-attention group may have."""
        sizes = tuple(c // self.block_size for c in self.context_buckets)
        return (*sizes, self.width)


def smallest(sizes: tuple[int, ...], wanted: int, what: str) -> int:
    """The smallest size that holds `wanted`.

    Raises:
        ValueError: none does.
    """
    fitting = [size for size in sizes if size >= wanted]
    if not fitting:
        raise ValueError(f"no {what} of {sizes} holds {wanted}")
    return min(fitting)
