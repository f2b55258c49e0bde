"""Where generated files and proofs are kept: `AUTOPORT_CACHE`, or the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """A folder below the cache, made if it is not there."""
    root = os.environ.get("AUTOPORT_CACHE")
    if not root:  # an empty variable is no folder either
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        root = str(Path(base) / "neuron-autoport")
    folder = Path(root).joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
