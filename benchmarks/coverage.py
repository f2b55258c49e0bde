"""Port and prove every decoder-only model type: what is fused, kept, refused, wrong, and what vLLM fuses.

usage: python -m benchmarks.coverage [TYPE ...] [--jobs N] [--no-vllm] [--update]
A row per type (`coverage_table.py`); the last line is JSON. `--update` rewrites `coverage.json`, which the tests
hold later versions to. Weights are random, models small (`models/tiny.py`); seconds are this machine's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.architectures import TYPES, default_config
from benchmarks.coverage_costs import DENSE, Shares, kept_work, shares
from benchmarks.coverage_table import HEAD, lines
from benchmarks.vllm_fusers import Missing, available, not_covered, their_sites
from neuron_autoport.errors import AutoportError
from neuron_autoport.pipeline import ProvedPort, proved_port
from neuron_autoport.report.summary import count_sites
from neuron_autoport.rules.library import load_rules

KEPT = Path(__file__).with_name("coverage.json")


@dataclass(frozen=True)
class Row:
    """One model type.

    fused: sites by rule; kinds: by kind of rule (its folder). refused: full or near matches that are not
    used, by kind. kept: calls of products, norms and attention that no site holds, by operation.
    dropped: `Class:rule` pairs whose proof failed; they are not used. ends: why a class was not traced to
    its end. traced: every class to its end. proved: every site holds and the logits are equal.
    wrong: the model as it would be served does not compute what the original does.
    fp32, bf16: the largest error of a rewritten module or of the logits, relative to the original's own.
    vllm: sites of vLLM's fusers by kind, None without vLLM; missing: those of them that we do not cover.
    """

    model_type: str
    fused: dict[str, int]
    kinds: dict[str, int]
    refused: dict[str, int]
    kept: dict[str, int]
    dropped: tuple[str, ...]
    ends: tuple[str, ...]
    proved: bool
    wrong: bool
    fp32: float | None
    bf16: float | None
    shares: Shares
    vllm: dict[str, int] | None
    missing: tuple[Missing, ...]
    seconds: float

    @property
    def traced(self) -> bool:
        return not self.ends


def measure(model_type: str, with_vllm: bool | None = None) -> Row:
    """Port and prove one type.

    Args:
        with_vllm: compare with vLLM's fusers; None: if it is installed.
    """
    started = time.perf_counter()
    try:
        proved = proved_port(default_config(model_type), use_cache=False)
    except AutoportError as error:  # another transformers version may not build its own default
        return _not_built(model_type, error, round(time.perf_counter() - started, 2))
    port, proof = proved.port, proved.proof
    fused, _ = count_sites(port)
    equal = proof.logits is None or proof.logits.passed
    compared = available() if with_vllm is None else with_vllm
    theirs = their_sites(port.model, port.base) if compared else []
    return Row(
        model_type,
        dict(sorted(fused.items())),
        _by_kind(site.rule.name for _, site in port.sites()),
        _by_kind(_refused(proved)),
        kept_work(port),
        tuple(sorted(proof.without)),
        tuple(dict.fromkeys(_ends(proved))),
        not proof.dropped and equal,
        bool(fused) and not equal,
        _worst(proved, "fp32"),
        _worst(proved, "bf16"),
        shares(port),
        dict(Counter(t.kind for t in theirs)) if compared else None,
        tuple(not_covered(port, theirs)),
        round(time.perf_counter() - started, 2),
    )


def _not_built(model_type: str, error: AutoportError, seconds: float) -> Row:
    nothing: dict[str, int] = {}
    none = Shares(0.0, 0.0, 0.0, {})
    return Row(
        model_type, nothing, nothing, nothing, nothing, (), (f"does not build: {error.what}",),
        False, False, None, None, none, None, (), seconds,
    )  # fmt: skip


def _by_kind(names: Iterable[str]) -> dict[str, int]:
    folders = {rule.name: rule.path.parent.name for rule in load_rules()}
    return dict(sorted(Counter(folders[name] for name in names).items()))


def _refused(proved: ProvedPort) -> Iterator[str]:
    for plan in proved.port.where.values():
        yield from (r.rule for r in plan.refusals)
        yield from plan.without


def _ends(proved: ProvedPort) -> Iterator[str]:
    for plan in proved.port.plans:
        if plan.trace.end is not None:
            end = plan.trace.end
            yield f"{plan.trace.module_class.__name__}: {end.code} {end.message}"


def _worst(proved: ProvedPort, dtype: str) -> float | None:
    """The largest ratio of errors among the rewritten modules, and the logits in float32."""
    found = [getattr(m, dtype) for m in proved.proof.modules]
    found += [proved.proof.logits] if dtype == "fp32" else []
    ratios = [c.ratio for c in found if c is not None and c.original]
    return round(max(ratios), 3) if ratios else None


def totals(rows: list[Row], seconds: float) -> dict[str, Any]:
    """The last line. superset_of_vllm is None where there is no vLLM.

    A site that vLLM's own layer computes wrongly is no part of what has to be covered; the rows name it.
    """
    dense = [r.shares.layer_flops for r in rows if r.model_type in DENSE] or [0.0]
    compared = all(r.vllm is not None for r in rows)
    return {
        "architectures": len(rows),
        "proved": sum(r.proved for r in rows),
        "wrong": sum(r.wrong for r in rows),
        "traced": sum(r.traced for r in rows),
        "superset_of_vllm": _covers(rows) if compared else None,
        "dense_flops_fused_median": round(statistics.median(dense), 4),
        "dense_flops_fused_min": round(min(dense), 4),
        "seconds": round(seconds, 1),
    }


def _covers(rows: list[Row]) -> bool:
    return all(m.beyond is not None for row in rows for m in row.missing)


def kept_row(row: Row) -> dict[str, Any]:
    """What a row of `coverage.json` holds."""
    return {
        "fused": row.fused,
        "traced": row.traced,
        "ends": list(row.ends),
        "proved": row.proved,
        "layer_flops": round(row.shares.layer_flops, 4),
        "vllm": row.vllm,
        "missing": sorted(f"{m.kind} {m.class_name}" for m in row.missing if m.beyond is None),
        "beyond_vllm": sorted(f"{m.kind} {m.class_name}" for m in row.missing if m.beyond),
    }


def prepare() -> None:
    """Settings of a process that measures: quiet, one thread."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def measure_all(types: list[str], jobs: int, with_vllm: bool | None = None) -> Iterator[Row]:
    """Rows in the order of `types`, measured by so many processes."""
    if jobs == 1:
        prepare()
        yield from (measure(t, with_vllm) for t in types)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=prepare) as pool:
        yield from pool.map(measure, types, [with_vllm] * len(types))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*", default=[t for t in TYPES if t in CONFIG_MAPPING])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-vllm", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--rows", type=Path, help="write all rows to this JSON file")
    options = parser.parse_args()
    started = time.perf_counter()
    rows = []
    print(HEAD)
    for row in measure_all(options.types, options.jobs, False if options.no_vllm else None):
        rows.append(row)
        print(lines(row), flush=True)
    if options.update:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))["types"] if KEPT.exists() else {}
        kept |= {r.model_type: kept_row(r) for r in rows}
        data = {"transformers": transformers.__version__, "types": dict(sorted(kept.items()))}
        KEPT.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.rows:
        all_rows = [asdict(r) | {"traced": r.traced} for r in rows]
        data = {"transformers": transformers.__version__, "rows": all_rows}
        options.rows.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(totals(rows, time.perf_counter() - started)))


if __name__ == "__main__":
    main()
