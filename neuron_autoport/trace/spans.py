"""Which source expression is running: exact positions read from CPython's frames.

CPython >= 3.11 keeps, for every bytecode instruction, the line and column range of the expression it
came from (PEP 657). Columns are UTF-8 byte offsets, starting at 0; lines start at 1.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
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


class _Code:
    """Positions in one code object, each span made once. Holds the object, so that its id stays its own."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.own = not code.co_filename.startswith((_TORCH_ROOT, _TRACE_ROOT))
        self.spans: dict[int, Span | None] = {}

    def span(self, index: int) -> Span | None:
        """The expression of an instruction."""
        if index not in self.spans:
            self.spans[index] = self._span(index)
        return self.spans[index]

    def _span(self, index: int) -> Span | None:
        code = self.code
        line, end_line, column, end_column = next(
            islice(code.co_positions(), index, None), (None,) * 4
        )
        if line is None or end_line is None or column is None or end_column is None:
            return None
        return Span(code.co_filename, line, column, end_line, end_column, code.co_qualname)


# By identity: to compare code objects is to compare all that is in them.
_codes: dict[int, _Code] = {}


def _known(code: CodeType) -> _Code:
    found = _codes.get(id(code))
    if found is None:
        found = _codes[id(code)] = _Code(code)
    return found


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
        known = _known(code)
        if code is forward or known.own:
            span = known.span(frame.f_lasti // 2)
            if span is not None:
                chain.append(span)
        if code is forward:
            return tuple(reversed(chain))
        frame = frame.f_back
    return ()


def running_where(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of the error that is neither torch's nor ours."""
    where, tb = None, error.__traceback__
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if "/torch/" not in file and "/neuron_autoport/trace/" not in file:
            where = f"{file}:{tb.tb_lineno}"
        tb = tb.tb_next
    return where
