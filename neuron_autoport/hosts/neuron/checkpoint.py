"""Reading a safetensors checkpoint with the interface of the plugin's reader.

`SafetensorsCheckpoint(path).load_sharded(rank, world_size, model, mappings, device)` goes over the
model's parameters; each parameter's `weight_loader` gets lazy slices of its checkpoint tensors and the
rank, and gives the rank's tensor. One parameter is read at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from safetensors import safe_open
from torch import nn

from neuron_autoport.hosts.neuron.engine import plugin_module
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.weights.lazy import Held

Transform = Callable[[list[Any], int], torch.Tensor]


@dataclass(frozen=True)
class SafetensorsWeightLoader:
    """How a parameter is made of checkpoint slices."""

    transform: Transform


@dataclass
class Loaded:
    """What was read, by parameter name."""

    state_dict: dict[str, torch.Tensor] = field(default_factory=dict)
    missing_keys: list[str] = field(default_factory=list)
    unexpected_keys: list[str] = field(default_factory=list)


def weight_loader(transform: Transform) -> Any:
    """The plugin's loader object where it is in use, else ours."""
    module = plugin_module("vllm_neuron.utils.weight_loader")
    cls = SafetensorsWeightLoader if module is None else module.SafetensorsWeightLoader
    return cls(transform)


def set_weight_loader(parameter: nn.Parameter, loader: Any) -> None:
    """Hang a loader on a parameter."""
    module = plugin_module("vllm_neuron.utils.weight_loader")
    if module is None:
        parameter.weight_loader = loader  # type: ignore[attr-defined]
    else:
        module.set_weight_loader(parameter, loader)


def open_checkpoint(path: str, cache_dir: str | None) -> Any:
    """The plugin's reader where it is in use, else ours."""
    module = plugin_module("vllm_neuron.utils.checkpoints")
    cls = SafetensorsCheckpoint if module is None else module.SafetensorsCheckpoint
    return cls(path, cache_dir)


class SafetensorsCheckpoint:
    """A folder with safetensors files, or a hub id. as_model: names are already the model's.

    Raises:
        NeuronHostError: there are no safetensors files.
    """

    as_model = False

    def __init__(self, model_name_or_path: str, cache_dir: str | None = None) -> None:
        self.where = str(model_name_or_path)
        folder = Path(self.where)
        if not folder.is_dir():
            folder = _download(self.where, cache_dir)
        self.files: dict[str, Path] = {}
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self.files = {key: folder / name for key, name in listed.items()}
            return
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self.files.update(dict.fromkeys(file.keys(), path))
        if not self.files:
            raise refuse("there are no safetensors files", self.where)

    def get_tensor_names(self) -> list[str]:
        """All tensor names of the checkpoint."""
        return list(self.files)

    def load_sharded(
        self,
        rank: int,
        world_size: int,
        model: nn.Module,
        mappings: Mapping[str, str | list[str]],
        device: torch.device | str,
        dtype_override: torch.dtype | None = None,
        strict: bool = True,
    ) -> Loaded:
        """Read every parameter's tensor for one rank, in the parameter's dtype."""
        loaded, used = Loaded(), set()
        with _Opened() as opened:
            for name, parameter in model.named_parameters():
                given = mappings.get(name, name)
                keys = [given] if isinstance(given, str) else list(given)
                if any(key not in self.files for key in keys):
                    loaded.missing_keys.append(name)
                    continue
                used |= set(keys)
                slices = self.slices(keys, opened)
                loader = getattr(parameter, "weight_loader", None)
                tensor = loader.transform(slices, rank) if loader else slices[0][:]
                wanted = dtype_override or parameter.dtype
                loaded.state_dict[name] = tensor.to(device=device, dtype=wanted).contiguous()
        loaded.unexpected_keys = sorted(set(self.files) - used)
        return loaded

    def slices(self, keys: list[str], opened: _Opened) -> list[Any]:
        """Lazy slices of these tensors."""
        return [opened.file(self.files[key]).get_slice(key) for key in keys]


class _Opened(ExitStack):
    """Files that stay open while a model is read."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[Path, Any] = {}

    def file(self, path: Path) -> Any:
        if path not in self.files:
            self.files[path] = self.enter_context(safe_open(path, "pt"))
        return self.files[path]


class MemoryCheckpoint(SafetensorsCheckpoint):
    """A model's state that is in memory, read like a checkpoint whose names are the model's."""

    as_model = True

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self.where, self.state = "memory", dict(state)
        self.files = dict.fromkeys(self.state, Path())

    def slices(self, keys: list[str], opened: Any) -> list[Any]:
        return [Held(self.state[key]) for key in keys]


def _download(name: str, cache_dir: str | None) -> Path:
    try:
        patterns = ["*.safetensors", "*.json"]
        return Path(snapshot_download(name, cache_dir=cache_dir, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
        raise refuse(f"no such folder or hub id: {error}", name) from error
