"""The table of `coverage.py`: one line per model type, and below it what is wrong or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.coverage import Row

HEAD = """\
sites: fused / refused by kind of rule. kept: operations no site holds, by number of calls. FLOPs, bytes: share of the
model in sites; layers: share of the layers' matrix products. fp32, bf16: largest error over the original's own."""


def lines(row: Row) -> str:
    """A row of the table, and lines for what did not come out as it should."""
    state = "WRONG" if row.wrong else "proved" if row.proved else "dropped"
    s = row.shares
    first = (
        f"{row.model_type:22} {state:7} FLOPs {s.flops:4.0%} bytes {s.bytes:4.0%} layers "
        f"{s.layer_flops:4.0%}  fp32 {_number(row.fp32)} bf16 {_number(row.bf16)}  {row.seconds:5.1f} s"
    )
    kinds = sorted(row.kinds.keys() | row.refused.keys())
    sites = ", ".join(f"{k} {row.kinds.get(k, 0)}/{row.refused.get(k, 0)}" for k in kinds)
    kept = ", ".join(f"{k} {n}" for k, n in row.kept.items())
    out = [first, f"    sites {sites or 'none'}; kept {kept or 'nothing'}"]
    if row.vllm is not None:
        theirs = ", ".join(f"{k} {n}" for k, n in sorted(row.vllm.items()))
        out.append(f"    vLLM  {theirs or 'nothing'}")
    out += [f"    {'beyond vLLM' if m.beyond else 'missing'} {m.kind} {m.class_name} x{m.count} at "
            f"{m.example}: {m.beyond or m.reasons[0]}" for m in row.missing]  # fmt: skip
    out += [f"    dropped {pair}" for pair in row.dropped]
    out += [f"    not traced to the end: {end}" for end in row.ends]
    return "\n".join(out)


def _number(ratio: float | None) -> str:
    return "   -" if ratio is None else f"{ratio:4.2f}"
