"""The metadata-only wheel follows the binary distribution format and owns nothing but metadata."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

from tools.metadata_wheel import build_metadata_wheel


def test_file_name_and_members(tmp_path: Path) -> None:
    wheel = build_metadata_wheel("my.Dist-name", "1.2+cpu", "One line", tmp_path)
    assert wheel == tmp_path / "my_dist_name-1.2+cpu-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == [
            "my_dist_name-1.2+cpu.dist-info/METADATA",
            "my_dist_name-1.2+cpu.dist-info/RECORD",
            "my_dist_name-1.2+cpu.dist-info/WHEEL",
        ]


def test_record_has_the_hash_and_size_of_every_other_file(tmp_path: Path) -> None:
    wheel = build_metadata_wheel("vllm", "0.32.0+cpu", "One line", tmp_path)
    info = "vllm-0.32.0+cpu.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        rows = list(csv.reader(archive.read(f"{info}/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == [f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
        for name, digest, size in rows[:-1]:
            content = archive.read(name)
            algorithm, encoded = digest.split("=", 1)
            padded = encoded + "=" * (-len(encoded) % 4)
            assert algorithm == "sha256"
            assert base64.urlsafe_b64decode(padded) == hashlib.sha256(content).digest()
            assert int(size) == len(content)
        assert rows[-1][1:] == ["", ""]


def test_pip_installs_it_and_its_version_is_found(tmp_path: Path) -> None:
    wheel = build_metadata_wheel("only-metadata", "3.4.5+cpu", "One line", tmp_path)
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)
    found = {
        dist.metadata["Name"]: dist.version
        for dist in importlib.metadata.distributions(path=[str(target)])
    }
    assert found == {"only-metadata": "3.4.5+cpu"}
    assert [path.name for path in target.iterdir()] == ["only_metadata-3.4.5+cpu.dist-info"]
