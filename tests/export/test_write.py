"""Writing a package over an older one: a failure at the last moment leaves the older one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuron_autoport.export import write


def test_what_was_there_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "a").write_text("old")
    real = os.replace

    def full(source: str | Path, place: str | Path) -> None:
        if Path(source).name == "new":
            raise OSError(28, "No space left on device")
        real(source, place)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(write.OutputError, match="No space left"):
        write.write_files({"b": "new"}, target)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (target / "a").read_text() == "old"
