"""Exported packages of tiny checkpoints, made once per test run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_autoport.export.check import load_package, model_class
from neuron_autoport.export.write import export
from neuron_autoport.models.source import load_model_config
from neuron_autoport.rules.sources import load_library
from tests.hosts.neuron.checkpoints import Checkpoint, small, write

# One key/value head per rank on two ranks, and sizes that the decode kernel takes.
DECODES = {"hidden_size": 128, "num_key_value_heads": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": DECODES,
    "gemma3_text": {},
    "phi3": {},
    "mixtral": {},
    "olmo2": {},
}


@dataclass(frozen=True)
class Exported:
    """A checkpoint and the package of its model."""

    saved: Checkpoint
    folder: Path

    @property
    def cls(self) -> Any:
        """The class that the package registers, as the folder is now."""
        return model_class(load_package(self.folder))

    def text(self, file: str = "model.py") -> str:
        """A file of the package."""
        return (self.folder / file).read_text(encoding="utf-8")


def make(scratch: Path, model_type: str, **changes: Any) -> Exported:
    """Write a tiny checkpoint and export its model."""
    saved = write(scratch / "checkpoint", small(model_type, **changes))
    folder = scratch / f"neuron_{model_type}"
    export(load_model_config(str(saved.folder)), folder, load_library())
    return Exported(saved, folder)
