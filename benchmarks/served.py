"""Serve every decoder-only model type in vLLM's engine: greedy tokens against Hugging Face eager.

usage: python -m benchmarks.served [TYPE ...] [--jobs N] [--impl I] [--compiled] [--update] [--logs FOLDER]
Each type is a small model with adversarial weights (`models/tiny.py`) in a process and an engine of its own, eager or
compiled as vLLM does by itself (half a minute each), float32, three prompts of different lengths in one batch. A result
per type:

- `served`: the tokens are Hugging Face's; `served: each request alone` where no cache of vLLM's would do;
- `wrong`: they are not (nobody may see this);
- `refused: CODE what`: a clear error of ours before any weight is read;
- `failed: error`: anything else.

For what is not served, vLLM's own Transformers backend is run as well. The last line is JSON; `--update` rewrites
`served.json`, a sample of which the tests hold later versions to.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.architectures import TYPES

KEPT = Path(__file__).with_name("served.json")
OURS, THEIRS = "neuron-transformers", "transformers"
PATIENCE = 600
# Each type runs in a fork of a server that has imported vLLM once: the import takes longer than a type does.
PRELOAD = ("benchmarks.served_one",)


@dataclass(frozen=True)
class Row:
    """One type. theirs: the result of vLLM's own backend where ours does not serve, else None."""

    model_type: str
    result: str
    theirs: str | None
    seconds: float


def measure(model_type: str, impls: tuple[str, ...], logs: Path, *, compiled: bool = False) -> Row:
    """Serve one type; with vLLM's own backend as well if ours does not serve it."""
    started = time.perf_counter()
    result = _run(model_type, impls[0], logs, compiled)
    theirs = None
    if not result.startswith("served") and len(impls) > 1:
        theirs = _run(model_type, impls[1], logs, compiled)
    return Row(model_type, result, theirs, round(time.perf_counter() - started, 1))


def _run(model_type: str, impl: str, logs: Path, compiled: bool) -> str:
    """The result of one type with one implementation, in a process of its own."""
    from benchmarks import served_one

    context = multiprocessing.get_context("forkserver")
    folder = logs / impl / model_type
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result"
    result.unlink(missing_ok=True)
    process = context.Process(target=served_one.run, args=(model_type, impl, folder, compiled))
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
        return f"failed: no answer after {PATIENCE} seconds"
    if not result.exists():
        return f"failed: the process ended with code {process.exitcode}"
    return result.read_text(encoding="utf-8")


def measure_all(
    types: list[str], jobs: int, impls: tuple[str, ...], logs: Path, *, compiled: bool = False
) -> Iterator[Row]:
    """Rows in the order of `types`, so many at a time."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOAD))
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda t: measure(t, impls, logs, compiled=compiled), types)


def totals(rows: list[Row], seconds: float) -> dict[str, Any]:
    """The last line."""
    kinds = [r.result.partition(":")[0] for r in rows]
    found = {kind: kinds.count(kind) for kind in ("served", "wrong", "refused", "failed")}
    return {"types": len(rows), **found, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*", default=TYPES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--impl", choices=(OURS, THEIRS), help="only this one")
    parser.add_argument("--compiled", action="store_true", help="as vLLM serves by itself")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--logs", type=Path, help="keep what each engine printed in this folder")
    options = parser.parse_args()
    if options.update and options.compiled:
        parser.error("what is kept is of eager engines: --update or --compiled")
    if options.update and options.impl == THEIRS:
        parser.error(f"what is kept is ours, with vLLM's beside: --update or --impl {THEIRS}")
    started = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        impls = (options.impl,) if options.impl else (OURS, THEIRS)
        logs = options.logs or Path(place)
        found = measure_all(options.types, options.jobs, impls, logs, compiled=options.compiled)
        for row in found:
            rows.append(row)
            beside = f"   (vLLM's own: {row.theirs})" if row.theirs else ""
            print(f"{row.model_type:24} {row.seconds:6.1f} s  {row.result}{beside}", flush=True)
    if options.update:
        kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
        for row in rows:
            unasked = options.impl and not row.result.startswith("served")
            theirs = kept.get(row.model_type, {}).get("theirs") if unasked else row.theirs
            kept[row.model_type] = {"result": row.result, "theirs": theirs}
        text = json.dumps(dict(sorted(kept.items())), indent=1)
        KEPT.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(totals(rows, time.perf_counter() - started)))


if __name__ == "__main__":
    main()
