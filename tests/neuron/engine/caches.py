"""KV caches as vLLM's hybrid manager lays them out: groups of layers, buffers shared between groups.

Layers of one kind (heads, head size, window) form groups of equal length. The i-th layers of all
groups share one raw buffer, viewed as [2, blocks, heads, block size, dim]; blocks come from one
pool, so two groups never own the same block. Block 0 is the null block.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.neuron.engine.options import Options
from tests.neuron.faults import Faults

Kind = tuple[int, int, int | None, int | None]


@dataclass
class Group:
    """Layers that share block tables and one metadata dict."""

    layers: list[str]
    window: int | None


@dataclass
class Caches:
    """All buffers, which layer sees which, and the pool of free blocks."""

    groups: list[Group]
    buffers: list[Tensor]
    bound: dict[str, list[Tensor]]
    faults: Faults
    free: list[int] = field(default_factory=list)

    def take(self) -> int:
        """A free block; the one freed last comes first, so blocks are reused at once."""
        if not self.free:
            raise RuntimeError("the runner is out of cache blocks")
        block = self.free.pop()
        for buffer in self.buffers:
            self.faults.in_use(buffer[:, block])
        return block

    def give_back(self, block: int) -> None:
        """Free a block."""
        for buffer in self.buffers:
            self.faults.unused(buffer[:, block])
        self.free.append(block)


def make_caches(spec: Any, options: Options) -> Caches:
    """The caches a KVSpec asks for.

    Raises:
        ValueError: a name twice, or sizes that are not positive.
    """
    names = [layer.name for layer in spec.layers]
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"KVSpec must name each layer once, got {names}")
    kinds: dict[Kind, list[str]] = {}
    for layer in spec.layers:
        if min(layer.num_kv_heads, layer.head_size) < 1:
            raise ValueError(f"{layer.name}: {layer.num_kv_heads} heads of {layer.head_size}")
        kind = (layer.num_kv_heads, layer.head_size, layer.sliding_window_size, layer.chunk_size)
        kinds.setdefault(kind, []).append(layer.name)
    size = min(len(layers) for layers in kinds.values())
    groups: list[Group] = []
    shapes: list[tuple[int, int]] = []
    for (heads, dim, window, _), layers in kinds.items():
        for start in range(0, len(layers), size):
            groups.append(Group(layers[start : start + size], window))
            shapes.append((heads, dim))
    blocks = options.num_blocks or 1 + len(groups) * options.batch * options.width + 2
    return _allocate(groups, shapes, blocks, options)


def _allocate(
    groups: list[Group], shapes: list[tuple[int, int]], blocks: int, options: Options
) -> Caches:
    shared: dict[tuple[int, int, int], Tensor] = {}
    bound: dict[str, list[Tensor]] = {}
    for group, (heads, dim) in zip(groups, shapes, strict=True):
        for index, name in enumerate(group.layers):
            key = (index, heads, dim)
            if key not in shared:
                raw = torch.zeros(
                    2 * blocks * heads * options.block_size * dim, dtype=options.dtype
                )
                shared[key] = raw.view(2, blocks, heads, options.block_size, dim)
            bound[name] = [shared[key][0], shared[key][1]]
    free = list(range(1, blocks))
    random.Random(5).shuffle(free)
    return Caches(groups, list(shared.values()), bound, options.faults, free)
