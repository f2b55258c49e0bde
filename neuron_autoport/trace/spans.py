"""Which source expression is running: exact positions read from CPython's frames.

CPython >= 3.11 keeps, for every bytecode instruction, the line and column range of the expression it
came from (PEP 657). Columns are UTF-8 byte offsets, starting at 0; lines start at 1.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

import torch

_TORCH_ROOT = str(Path(torch.__file__).parent)
_TRACE_ROOT = str(Path(__file__).parent)


@dataclass(frozen=True, order=True)
class Span:
    """One source expression: file, lines from 1, columns from 0 in UTF-8 bytes, and its function."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str

    def __str__(self) -> str:
        """`file:line:column`, the column counted from 1 as editors do."""
        return f"{self.file}:{self.line}:{self.column + 1}"

    def short(self) -> str:
        """The same with the file's base name only."""
        return f"{Path(self.file).name}:{self.line}:{self.column + 1}"


@lru_cache(maxsize=4096)
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    return tuple(code.co_positions())


def _span(frame: FrameType) -> Span | None:
    index = frame.f_lasti // 2
    positions = _positions(frame.f_code)
    if index >= len(positions):
        return None
    line, end_line, column, end_column = positions[index]
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return Span(
        frame.f_code.co_filename, line, column, end_line, end_column, frame.f_code.co_qualname
    )


def running_spans(forward: CodeType) -> tuple[Span, ...]:
    """The chain of expressions running now, from the frame of `forward` inwards.

    Args:
        forward: code object of the forward being traced.

    Returns:
        Spans, the one in `forward` first and the innermost last; frames of torch and of the tracer
        are left out, but for a forward that is torch's own. Empty if `forward` is not on the stack.
    """
    chain: list[Span] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is forward or not code.co_filename.startswith((_TORCH_ROOT, _TRACE_ROOT)):
            span = _span(frame)
            if span is not None:
                chain.append(span)
        if code is forward:
            return tuple(reversed(chain))
        frame = frame.f_back
    return ()
