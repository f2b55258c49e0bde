"""SafetensorsCheckpoint: a local folder's tensors, read lazily, sharded by the loaders.

Reads `model.named_parameters()` only, never buffers. The call log counts the bytes read of each
checkpoint tensor, so that a test can ask whether a rank read more than its shard.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from tests.neuron.double.state import state
from tests.neuron.double.weight_loader import get_weight_loader


class CheckpointLoadResult(NamedTuple):
    """Parameters by name, names not found, and checkpoint tensors nobody asked for."""

    state_dict: dict[str, Tensor]
    missing_keys: list[str]
    unexpected_keys: list[str]


class CountedSlice:
    """A lazy slice of one tensor in a file; what is read through it is counted in the log."""

    def __init__(self, base: Any, name: str) -> None:
        self.base, self.name = base, name

    def get_shape(self) -> list[int]:
        """The whole tensor's shape."""
        return list(self.base.get_shape())

    def get_dtype(self) -> str:
        """The whole tensor's dtype, as the file names it."""
        return str(self.base.get_dtype())

    def __getitem__(self, key: Any) -> Tensor:
        part: Tensor = self.base[key]
        state().log.read[self.name] += part.numel() * part.element_size()
        return part


class SafetensorsCheckpoint:
    """A checkpoint in a local folder. (The plugin's also takes a hub id.)"""

    def __init__(self, model_name_or_path: str, cache_dir: str | None = None) -> None:
        folder = Path(model_name_or_path)
        files = sorted(folder.glob("*.safetensors"))
        assert files, f"No .safetensors files found for {model_name_or_path}"
        self._files = [safe_open(str(file), framework="pt", device="cpu") for file in files]
        self._where: dict[str, Any] = {
            name: file for file in self._files for name in list(file.keys())
        }

    def get_tensor_names(self) -> list[str]:
        """All tensors of the checkpoint."""
        return list(self._where)

    def load_sharded(
        self,
        rank: int,
        world_size: int,
        model: torch.nn.Module,
        mappings: dict[str, str | list[str]],
        device: torch.device,
        strict: bool = True,
    ) -> CheckpointLoadResult:
        """Each parameter through its loader, in the dtype the loader gives.

        Raises:
            RuntimeError: a tensor is missing and `strict`.
        """
        return self._load(rank, model, mappings, device, {}, strict, cast=False)

    def load_sharded_pipelined(
        self,
        rank: int,
        world_size: int,
        model: torch.nn.Module,
        mappings: dict[str, str | list[str]],
        device: torch.device,
        dtype_override: dict[str, torch.dtype] | None = None,
        strict: bool = True,
    ) -> CheckpointLoadResult:
        """As `load_sharded`, cast to each parameter's dtype; needs torch.distributed.

        Raises:
            RuntimeError: a tensor is missing and `strict`.
            ValueError: torch.distributed is not initialized.
        """
        dist.distributed_c10d._get_default_store()
        return self._load(rank, model, mappings, device, dtype_override or {}, strict, cast=True)

    def _load(
        self,
        rank: int,
        model: torch.nn.Module,
        mappings: dict[str, str | list[str]],
        device: torch.device,
        dtypes: dict[str, torch.dtype],
        strict: bool,
        cast: bool,
    ) -> CheckpointLoadResult:
        loaded: dict[str, Tensor] = {}
        missing: list[str] = []
        used: set[str] = set()
        for name, parameter in model.named_parameters():
            mapped = mappings.get(name, name)
            keys = mapped if isinstance(mapped, list) else [mapped]
            used.update(keys)
            absent = [key for key in keys if key not in self._where]
            if absent and strict:
                raise RuntimeError(f"checkpoint has no {absent}, asked for by parameter {name!r}")
            if absent:
                missing.append(name)
                continue
            slices = [CountedSlice(self._where[key].get_slice(key), key) for key in keys]
            tensor = get_weight_loader(parameter).load(slices, rank)
            if cast:
                tensor = tensor.to(dtypes.get(name, parameter.dtype))
            loaded[name] = tensor.to(device)
        return CheckpointLoadResult(loaded, missing, [k for k in self._where if k not in used])
