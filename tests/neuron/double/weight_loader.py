"""The weight loaders of `vllm_neuron.utils.weight_loader`: from file slices to a rank's parameter.

A loader is a transform (slices, rank) -> tensor on the parameter's attribute `weight_loader`. A
slice is lazy: it has `get_shape()` and reads what it is indexed with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Transform = Callable[[list[Any], int], Tensor]


@dataclass
class SafetensorsWeightLoader:
    """How a parameter is read. Without a transform: the one tensor as it is."""

    transform: Transform | None = None

    def load(self, slices: list[Any], rank: int) -> Tensor:
        """The contiguous tensor of this rank."""
        if self.transform is not None:
            return self.transform(slices, rank).contiguous()
        assert len(slices) == 1, f"{len(slices)} checkpoint tensors for a loader without transform"
        whole: Tensor = slices[0][:]
        return whole.contiguous()


def set_weight_loader(param: torch.nn.Parameter, loader: SafetensorsWeightLoader) -> None:
    """Hang the loader on the parameter."""
    parameter: Any = param
    parameter.weight_loader = loader


def get_weight_loader(param: torch.nn.Parameter) -> SafetensorsWeightLoader:
    """The parameter's loader, or one that reads the whole tensor."""
    found = getattr(param, "weight_loader", None)
    return found if isinstance(found, SafetensorsWeightLoader) else SafetensorsWeightLoader()


def with_rank_override(loader: SafetensorsWeightLoader, rank: int) -> SafetensorsWeightLoader:
    """The same loader for a fixed rank."""
    return SafetensorsWeightLoader(lambda slices, _: loader.load(slices, rank))


def get_shard(slice_obj: Any, dim: int, shard_size: int, num_shards: int, rank: int) -> Tensor:
    """Shard rank mod num_shards of `dim`; shorter at the end of an unpadded tensor."""
    key = [slice(None)] * len(slice_obj.get_shape())
    start = (rank % num_shards) * shard_size
    key[dim] = slice(start, start + shard_size)
    shard: Tensor = slice_obj[tuple(key)]
    return shard


def pad_to_shape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros behind the tensor up to `shape`."""
    padded = tensor.new_zeros(tuple(shape))
    padded[tuple(slice(size) for size in tensor.shape)] = tensor
    return padded


def _stored(dim: int, transposed: bool) -> int:
    return 1 - dim if transposed else dim


def sharding_weight_loader(
    shard_dim: int,
    shard_size: int,
    num_shards: int,
    is_storage_transposed: bool = False,
    pad_shard: bool = False,
) -> SafetensorsWeightLoader:
    """One tensor, cut on `shard_dim` of the parameter; the file may hold it transposed."""

    def transform(slices: list[Any], rank: int) -> Tensor:
        assert len(slices) == 1, "sharding_weight_loader takes one checkpoint tensor"
        if is_storage_transposed:
            assert len(slices[0].get_shape()) == 2, "only a matrix can be stored transposed"
        stored = _stored(shard_dim, is_storage_transposed)
        shard = get_shard(slices[0], stored, shard_size, num_shards, rank)
        shard = shard.T if is_storage_transposed else shard
        if pad_shard:
            shape = list(shard.shape)
            shape[shard_dim] = shard_size
            shard = pad_to_shape(shard, shape)
        return shard

    return SafetensorsWeightLoader(transform)


def sharding_weight_loader_with_padding(
    shard_dim: int,
    shard_size: int,
    num_shards: int,
    is_storage_transposed: bool = False,
    pad_dim: int | None = None,
    padded_size: int | None = None,
    unpadded_size: int | None = None,
) -> SafetensorsWeightLoader:
    """As `sharding_weight_loader`; then zeros on `pad_dim` from the unpadded to the padded size."""
    inner = sharding_weight_loader(shard_dim, shard_size, num_shards, is_storage_transposed)

    def transform(slices: list[Any], rank: int) -> Tensor:
        shard = inner.load(slices, rank)
        if pad_dim is None or not padded_size or not unpadded_size:
            return shard
        shape = list(shard.shape)
        shape[pad_dim] += padded_size - unpadded_size
        return pad_to_shape(shard, shape)

    return SafetensorsWeightLoader(transform)


def last_dim_padding_weight_loader(padded_size: int) -> SafetensorsWeightLoader:
    """The whole tensor, zeros behind its last dimension."""

    def transform(slices: list[Any], rank: int) -> Tensor:
        whole = slices[0][:]
        return pad_to_shape(whole, (*whole.shape[:-1], max(padded_size, whole.shape[-1])))

    return SafetensorsWeightLoader(transform)


def fused_qkv_weight_loader(
    q_size: int,
    kv_size: int,
    shard_dim: int,
    num_shards: int,
    is_storage_transposed: bool = False,
    num_kv_replicas: int = 1,
    padded_hidden_size: int | None = None,
    unpadded_hidden_size: int | None = None,
    attention_dp_rank: int = 0,
    attention_dp_size: int = 1,
    kv_sharded_across_attention_dp: bool = False,
) -> SafetensorsWeightLoader:
    """Matrices q, k, v as one, each cut for itself; K and V of rank // num_kv_replicas."""
    assert shard_dim in (0, 1), f"shard_dim {shard_dim}"
    assert attention_dp_size == 1, "attention data parallelism is not in the double"

    def transform(slices: list[Any], rank: int) -> Tensor:
        assert len(slices) == 3, "fused_qkv_weight_loader takes [q, k, v]"
        assert all(len(each.get_shape()) == 2 for each in slices), "weights only, not biases"
        local = rank % num_shards
        parts = []
        for each, size, at in zip(
            slices,
            (q_size, kv_size, kv_size),
            (local, *[local // num_kv_replicas] * 2),
            strict=True,
        ):
            shard = get_shard(each, _stored(shard_dim, is_storage_transposed), size, num_shards, at)
            parts.append(shard.T if is_storage_transposed else shard)
        fused = torch.cat(parts, shard_dim)
        if padded_hidden_size and unpadded_hidden_size:
            extra = padded_hidden_size - unpadded_hidden_size
            fused = pad_to_shape(fused, (fused.shape[0] + extra, fused.shape[1]))
        return fused

    return SafetensorsWeightLoader(transform)


def scaled_bias_loader(scale: float, padded_size: int | None = None) -> SafetensorsWeightLoader:
    """The whole bias, divided by `scale` (the number of ranks), padded on its last dimension."""

    def transform(slices: list[Any], rank: int) -> Tensor:
        assert len(slices) == 1, "scaled_bias_loader takes one checkpoint tensor"
        bias: Tensor = slices[0][:] / scale
        if padded_size is not None and padded_size > bias.shape[-1]:
            bias = pad_to_shape(bias, (*bias.shape[:-1], padded_size))
        return bias

    return SafetensorsWeightLoader(transform)
