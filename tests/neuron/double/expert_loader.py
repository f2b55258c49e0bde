"""Expert-parallel weight loaders: a rank's contiguous experts, then the inner loader."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.neuron.double.weight_loader import SafetensorsWeightLoader


def _bounds(indices: list[int]) -> tuple[int, int]:
    """First and one past the last expert.

    Raises:
        ValueError: none, or not contiguous.
    """
    if not indices:
        raise ValueError("local_expert_indices is empty")
    first, end = indices[0], indices[0] + len(indices)
    if list(indices) != list(range(first, end)):
        raise ValueError(f"local_expert_indices must be contiguous, got {indices}")
    return first, end


class _Window:
    """A lazy file slice restricted to a range of one dimension."""

    def __init__(self, base: Any, dim: int, first: int, end: int) -> None:
        self.base, self.dim, self.first, self.end = base, dim, first, end

    def get_shape(self) -> list[int]:
        """The shape of the window."""
        shape = list(self.base.get_shape())
        shape[self.dim] = self.end - self.first
        return shape

    def __getitem__(self, key: Any) -> Tensor:
        keys = list(key) if isinstance(key, tuple) else [key]
        keys += [slice(None)] * (len(self.get_shape()) - len(keys))
        own = keys[self.dim]
        start, stop, step = own.indices(self.end - self.first)
        keys[self.dim] = slice(self.first + start, self.first + stop, step)
        found: Tensor = self.base[tuple(keys)]
        return found


def expert_parallel_tensor_dim_loader(
    local_expert_indices: list[int], original_loader: SafetensorsWeightLoader, expert_dim: int = 0
) -> SafetensorsWeightLoader:
    """Each checkpoint tensor holds all experts on `expert_dim`."""
    first, end = _bounds(local_expert_indices)

    def transform(slices: list[Any], rank: int) -> Tensor:
        windows = [_Window(each, expert_dim, first, end) for each in slices]
        return original_loader.load(windows, rank)

    return SafetensorsWeightLoader(transform)


def expert_parallel_grouped_loader(
    local_expert_indices: list[int],
    original_loader: SafetensorsWeightLoader,
    total_num_experts: int,
) -> SafetensorsWeightLoader:
    """Checkpoint tensors [gate of all experts, up of all experts, ...]."""
    first, end = _bounds(local_expert_indices)

    def transform(slices: list[Any], rank: int) -> Tensor:
        if len(slices) % total_num_experts:
            raise ValueError(f"{len(slices)} tensors for {total_num_experts} experts")
        groups = range(0, len(slices), total_num_experts)
        local = [each for base in groups for each in slices[base + first : base + end]]
        return original_loader.load(local, rank)

    return SafetensorsWeightLoader(transform)


def expert_parallel_interleaved_loader(
    local_expert_indices: list[int],
    original_loader: SafetensorsWeightLoader,
    total_num_experts: int,
) -> SafetensorsWeightLoader:
    """Checkpoint tensors [gate 0, up 0, gate 1, up 1, ...]."""
    first, end = _bounds(local_expert_indices)

    def transform(slices: list[Any], rank: int) -> Tensor:
        if len(slices) % total_num_experts:
            raise ValueError(f"{len(slices)} tensors for {total_num_experts} experts")
        each = len(slices) // total_num_experts
        return original_loader.load(slices[first * each : end * each], rank)

    return SafetensorsWeightLoader(transform)
