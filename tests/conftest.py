"""Settings of all tests: a cache folder of their own, one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.nki_sim.runner import nki_simulator

__all__ = ["nki_simulator", "own_cache"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Generated files and proofs of a test run do not meet those of the user."""
    before = os.environ.get("AUTOPORT_CACHE")
    folder = tmp_path_factory.mktemp("autoport-cache")
    os.environ["AUTOPORT_CACHE"] = str(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield folder
    torch.set_num_threads(threads)
    if before is None:
        os.environ.pop("AUTOPORT_CACHE", None)
    else:
        os.environ["AUTOPORT_CACHE"] = before
