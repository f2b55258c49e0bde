"""What the simulator refuses, by name: every check of it raises `SimError` with one of these rules.

The table is complete: `refuse` takes no other name, and tests/nki_sim/test_broken_kernels.py
holds a broken kernel for each of them.
"""

from __future__ import annotations

from typing import NoReturn

RULES = {
    # memory
    "partition-limit": "axis 0 of an on-chip tile is the partition axis, at most 128",
    "on-chip-rank": "SBUF and PSUM tensors have two axes or more",
    "rank-limit": "an operand has at most five axes",
    "sbuf-budget": "the live SBUF tiles of a core fit its bytes per partition",
    "psum-budget": "the live PSUM tiles of a core fit its eight banks of 2 KiB per partition",
    "psum-bank": "a matmul result lies within one PSUM bank",
    "unwritten-read": "memory is written before it is read",
    "out-of-bounds": "an access stays inside its tensor's storage",
    "dtype-exists": "the device has no such data type",
    # views
    "partition-view": "no view moves, merges or broadcasts the partition axis",
    "view-shape": "a view keeps the elements it is made of",
    "access-pattern": "an access pattern starts from a whole tensor, and on chip steps one partition on "
    "its first axis",
    "assignment": "tensors change by instructions only, never by assignment",
    # operands
    "operand-place": "an instruction reads and writes the memories its engine reaches",
    "operand-kind": "an operand is a tile where one is needed, a plain number where one is needed",
    "operand-shape": "operands have the partition and element counts the instruction asks for",
    "operand-dtype": "operands have data types the instruction takes",
    "operator": "the instruction has this operator on the device",
    "both-psum": "of two tile inputs at most one is in PSUM",
    "partition-start": "a compute tile starts on partition 0, 32, 64 or 96 and stays in reach of it",
    "vector-operand": "a per-partition operand is a [P, 1] tile of float32",
    "function-domain": "a function of the Scalar engine gets values it is defined for",
    # single instructions
    "reduce-axis": "reductions run over the last free axes, never over the partition axis",
    "matmul-tile": "a matmul has at most 128 rows, 128 stationary and 512 moving columns",
    "accumulate": "a matmul adds only to what a matmul wrote before",
    "accumulate-unclear": "a matmul says itself whether it adds to a tile that is in use",
    "transpose-shape": "a transpose fits its engine, and its result has the turned shape",
    "dma-shape": "source and destination of a copy have the same number of elements",
    "index-range": "indices of a gather or scatter lie inside the tensor, unless they are skipped",
    "sums-unset": "an engine's sums are reset before they are added to or read",
    "newer-core": "the instruction exists on Trainium 2",
    # launches
    "core-race": "two cores touch the same bytes only with a barrier in between",
    "core-deadlock": "both cores reach the same barriers and exchanges",
    "core-divergence": "both cores allocate the same shared tensors, in the same order",
    "output-place": "a kernel returns shared_hbm tensors",
    "output-unwritten": "every element of a returned tensor was written",
    "argument": "arguments are tensors and plain constants",
    "register-in-python": "a register's value is not known while the program is built",
    "launch": "a kernel runs on one or two cores",
    "not-simulated": "the simulator has this name",
}


class SimError(Exception):
    """A kernel did what the device does not do.

    Args:
        rule: a key of `RULES`.
        what: what the kernel did, with the shapes and numbers in question.
    """

    def __init__(self, rule: str, what: str) -> None:
        self.rule = rule
        self.what = what
        super().__init__(f"[{rule}] {what} ({RULES[rule]})")


def refuse(rule: str, what: str) -> NoReturn:
    """Raise the `SimError` of `rule`."""
    raise SimError(rule, what)


def demand(holds: object, rule: str, what: str) -> None:
    """Refuse unless `holds`."""
    if not holds:
        raise SimError(rule, what)
