"""Counts kept of several transformers versions: whole, no drop between them, and a drop is named."""

from __future__ import annotations

import importlib.metadata as metadata
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from benchmarks import drift
from benchmarks.architectures import TYPES

FILES = sorted(drift.FOLDER.glob("*.json"), key=lambda f: Version(f.stem))
# Types that a version has not, or whose class of it does what no rule may take for another's.
LESS: dict[tuple[str, str], str] = {
    (
        "5.24.0",
        name,
    ): "its norm is multiplied by the weight in float32: the weightless rule takes as many"
    for name in ("bamba", "deepseek_v4", "granitemoehybrid", "mamba2")
} | {
    ("5.19.0", "nemotron_h"): "its norm keeps the weight in float32: another rule takes as many",
    (
        "5.19.0",
        "aria_text",
    ): "its experts are transformers' own class, which stays whole for the host",
}


def read(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data


OLD = {"fused": {"rms_norm": 3, "qkv_proj": 2}, "traced": True, "proved": True}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (OLD, []),
        (OLD | {"fused": {"rms_norm": 4, "qkv_proj": 2, "rope": 1}}, []),
        (OLD | {"fused": {"rms_norm": 1}}, ["a: rms_norm 3 → 1", "a: qkv_proj 2 → 0"]),
        (OLD | {"traced": False}, ["a: no longer traced"]),
        (OLD | {"proved": False}, ["a: no longer proved"]),
        (None, ["a: the type is gone"]),
    ],
)
def test_a_drop_is_named(now: dict[str, Any] | None, expected: list[str]) -> None:
    assert drift.lost({"a": OLD}, {} if now is None else {"a": now}) == expected


def test_a_version_is_held_to_the_next_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "FOLDER", tmp_path)
    for version in ("5.2.0", "5.10.0"):
        (tmp_path / f"{version}.json").write_text(json.dumps({"is": version}), encoding="utf-8")
    assert drift.kept("5.1.0") is None
    assert drift.kept("5.2.0") == {"is": "5.2.0"} == drift.kept("5.9.9")
    assert drift.kept("5.10.0") == {"is": "5.10.0"} == drift.kept("6.0.0")


def test_only_what_is_missing_or_too_old_is_installed_beside(tmp_path: Path) -> None:
    info = tmp_path / "transformers-9.9.dist-info"
    info.mkdir()
    have = metadata.version("numpy")
    needs = [f"numpy>={have}", "numpy<1.0", "no-such-package", 'torch; extra == "torch"']
    text = "Metadata-Version: 2.1\nName: transformers\nVersion: 9.9\n"
    text += "".join(f"Requires-Dist: {n}\n" for n in needs)
    (info / "METADATA").write_text(text, encoding="utf-8")
    assert sorted(str(r) for r in drift.unmet(tmp_path)) == ["no-such-package", "numpy<1.0"]


def test_the_installed_version_needs_no_folder() -> None:
    assert drift.overlay(metadata.version("transformers")) is None


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_type_is_proved_and_traced(file: Path) -> None:
    data = read(file)
    assert set(data) <= set(TYPES) and len(data) >= 125
    assert [t for t, row in data.items() if not row["proved"]] == []
    assert [t for t, row in data.items() if not row["traced"]] == []


@pytest.mark.parametrize(("older", "newer"), pairwise(FILES))
def test_a_newer_version_has_no_less(older: Path, newer: Path) -> None:
    """Where transformers itself wrote a class in another way, the table says what became of it."""
    drops = [
        line
        for line in drift.lost(read(older), read(newer))
        if (newer.stem, line.partition(":")[0]) not in LESS
    ]
    assert not drops, "\n".join(drops)
