"""Port and prove every decoder-only model type: what is fused, what is refused, what is wrong.

usage: python -m benchmarks.coverage [TYPE ...] [--update]
A row per type; the last line is JSON. `--update` rewrites `coverage.json`, the counts that the tests
hold later versions to. Weights are random, models small (`models/tiny.py`); nothing is timed here.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from benchmarks.architectures import TYPES, default_config
from neuron_autoport.pipeline import proved_port
from neuron_autoport.report.summary import count_sites

KEPT = Path(__file__).with_name("coverage.json")


@dataclass(frozen=True)
class Row:
    """One model type. traced: every module of it to its end. proved: every site holds and the logits are equal.

    wrong: the model as it would be served does not compute what the original does.
    dropped: `Class:rule` pairs whose proof failed; they are not used.
    """

    model_type: str
    fused: dict[str, int]
    refused: int
    dropped: tuple[str, ...]
    traced: bool
    proved: bool
    wrong: bool
    seconds: float


def measure(model_type: str) -> Row:
    """Port and prove one type."""
    started = time.perf_counter()
    proved = proved_port(default_config(model_type), use_cache=False)
    fused, refused = count_sites(proved.port)
    logits = proved.proof.logits
    equal = logits is None or logits.passed
    return Row(
        model_type,
        dict(sorted(fused.items())),
        refused,
        tuple(sorted(proved.proof.without)),
        all(plan.trace.end is None for plan in proved.port.plans),
        not proved.proof.dropped and equal,
        bool(fused) and not equal,
        round(time.perf_counter() - started, 2),
    )


def totals(rows: list[Row]) -> dict[str, float]:
    """The last line."""
    return {
        "architectures": len(rows),
        "traced": sum(r.traced for r in rows),
        "proved": sum(r.proved for r in rows),
        "wrong": sum(r.wrong for r in rows),
        "fused_sites": sum(sum(r.fused.values()) for r in rows),
        "seconds": round(sum(r.seconds for r in rows), 1),
    }


def line(row: Row) -> str:
    """One row of the table."""
    fused = ", ".join(f"{rule} {n}" for rule, n in row.fused.items()) or "nothing"
    state = (
        "proved" if row.proved else "WRONG" if row.wrong else "dropped: " + " ".join(row.dropped)
    )
    traced = "" if row.traced else ", not traced to the end"
    return f"{row.model_type:24} {state}{traced}; fused {fused}; refused {row.refused}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*", default=TYPES)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = []
    for model_type in options.types:
        rows.append(measure(model_type))
        print(line(rows[-1]), flush=True)
    if options.update:
        kept = {
            r.model_type: {k: asdict(r)[k] for k in ("fused", "traced", "proved")} for r in rows
        }
        data = {"transformers": transformers.__version__, "types": kept}
        KEPT.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(totals(rows)))


if __name__ == "__main__":
    main()
