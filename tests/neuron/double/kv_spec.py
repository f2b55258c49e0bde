"""KVSpec and LayerSpec: what a model says about its caches."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class LayerSpec:
    """One layer's cache. `num_kv_heads` is per rank, after replication; `dtype` is ignored."""

    name: str
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    sliding_window_size: int | None = None
    chunk_size: int | None = None


@dataclass
class KVSpec:
    """All layers' caches, in order."""

    layers: list[LayerSpec]
