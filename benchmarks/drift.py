"""The coverage of other transformers versions, held to what is kept of each: a drop fails and is named.

usage: python -m benchmarks.drift [VERSION ...] [--jobs N] [--update]
Versions: 5.16.1, the installed one, and the newest that PyPI has. Each is put into a folder of its own, with what
it needs newer than the environment has, and shadows the installed one; torch is shared, vLLM not used.
`drift/VERSION.json` keeps the counts; a version without a file is held to that of the next older one.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from neuron_autoport.cache import cache_folder

FOLDER = Path(__file__).with_name("drift")
OLDEST = "5.16.1"


def versions() -> list[str]:
    """The versions to look at, oldest first."""
    installed = metadata.version("transformers")
    return sorted({OLDEST, installed, newest()}, key=Version)


def newest() -> str:
    """The newest release of transformers that pip finds.

    Raises:
        SystemExit: pip finds none.
    """
    text = _pip("index", "versions", "transformers", "--json")
    return str(json.loads(text)["latest"])


def overlay(version: str) -> Path | None:
    """A folder with this version, to stand before the environment; None if it is the installed one."""
    if version == metadata.version("transformers"):
        return None
    folder = cache_folder("drift") / version
    if not (folder / "complete").exists():
        _install(f"transformers=={version}", folder)
        for need in unmet(folder):
            _install(str(need), folder)
        (folder / "complete").touch()
    return folder


def unmet(folder: Path) -> list[Requirement]:
    """What the transformers in `folder` needs and the environment has not, or has too old."""
    (found,) = metadata.distributions(path=[str(folder)], name="transformers")
    needs = [Requirement(text) for text in found.requires or ()]
    return [
        need
        for need in needs
        if (need.marker is None or need.marker.evaluate({"extra": ""})) and not _has(need)
    ]


def _has(need: Requirement) -> bool:
    try:
        return need.specifier.contains(metadata.version(need.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _install(what: str, folder: Path) -> None:
    _pip("install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder), what)


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def run(version: str, jobs: int) -> dict[str, Any]:
    """Measure one version in processes of its own; what is kept of it, by type."""
    folder = overlay(version)
    environment = dict(os.environ)
    if folder is not None:
        paths = [str(folder), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    with tempfile.TemporaryDirectory() as place:
        rows = Path(place) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.coverage", "--no-vllm", "--jobs", str(jobs)]
        subprocess.run([*command, "--rows", str(rows)], env=environment, check=True)
        data = json.loads(rows.read_text(encoding="utf-8"))
    if data["transformers"] != version:
        raise SystemExit(f"transformers {data['transformers']} ran in place of {version}")
    return {r["model_type"]: {k: r[k] for k in ("fused", "traced", "proved")} for r in data["rows"]}


def kept(version: str) -> dict[str, Any] | None:
    """What is kept of a version, or of the next older one that has a file."""
    files = {Version(f.stem): f for f in FOLDER.glob("*.json")}
    older = [v for v in files if v <= Version(version)]
    if not older:
        return None
    data: dict[str, Any] = json.loads(files[max(older)].read_text(encoding="utf-8"))
    return data


def lost(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What was there before and is not now, one line each."""
    lines = []
    for model_type, old in before.items():
        new = now.get(model_type)
        if new is None:
            lines.append(f"{model_type}: the type is gone")
            continue
        for rule, count in old["fused"].items():
            found = new["fused"].get(rule, 0)
            if found < count:
                lines.append(f"{model_type}: {rule} {count} → {found}")
        lines += [f"{model_type}: no longer {k}" for k in ("traced", "proved") if old[k] > new[k]]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    drops: dict[str, list[str]] = {}
    for version in options.versions or versions():
        print(f"transformers {version}", flush=True)
        now = run(version, options.jobs)
        before = kept(version)
        drops[version] = lost(before, now) if before is not None else []
        for line in drops[version]:
            print(f"    lost {line}", flush=True)
        if options.update:
            FOLDER.mkdir(exist_ok=True)
            text = json.dumps(now, indent=1, sort_keys=True)
            (FOLDER / f"{version}.json").write_text(text + "\n", encoding="utf-8")
    print(json.dumps({"versions": list(drops), "lost": sum(map(len, drops.values()))}))
    sys.exit(1 if any(drops.values()) and not options.update else 0)


if __name__ == "__main__":
    main()
