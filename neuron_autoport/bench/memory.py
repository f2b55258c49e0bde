"""How much memory an engine has held: the most of each of its processes, together."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

_MOST = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_memory(process: int) -> int:
    """Most bytes that a process and each one below it has held at once; those that have ended do not count.

    Pages that two of them share count twice. Where the system does not tell the most (other than Linux), what each
    holds now counts.
    """
    try:
        root = psutil.Process(process)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(_held(member) for member in family)


def _held(member: psutil.Process) -> int:
    try:
        found = _MOST.search(Path(f"/proc/{member.pid}/status").read_text(encoding="ascii"))
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    try:
        return int(member.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
