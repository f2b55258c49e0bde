"""Source places as a user reads them: a short file name, line and column, and the line itself."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path

from neuron_autoport.trace.spans import Span


def short_file(file: str, model_folder: Path | None = None) -> str:
    """A file relative to the model's folder or to `sys.path`: `transformers/models/...`.

    Args:
        file: absolute path of a source file. model_folder: where the model's own code lies.
    """
    roots = [str(model_folder.resolve())] if model_folder is not None else []
    roots += [os.path.abspath(p) for p in sys.path if p]
    inside = [r for r in roots if file.startswith(r.rstrip(os.sep) + os.sep)]
    if not inside:
        return Path(file).name
    return os.path.relpath(file, max(inside, key=len)).replace(os.sep, "/")


def source_line(file: str, line: int) -> str:
    """Line `line` (from 1) of a file, without its line end; empty if it cannot be read."""
    return linecache.getline(file, line).rstrip("\n")


def caret_range(span: Span) -> tuple[int, int]:
    """First and one past the last character column of the span in its first line, from 0.

    Spans count UTF-8 bytes; a span over several lines is marked to the end of its first.
    """
    start = char_column(span.file, span.line, span.column)
    if span.end_line != span.line:
        return start, max(len(source_line(span.file, span.line)), start + 1)
    end = char_column(span.file, span.line, span.end_column)
    return start, max(end, start + 1)


def char_column(file: str, line: int, byte: int) -> int:
    """Column of a UTF-8 byte column in characters, both from 0."""
    return len(source_line(file, line).encode()[:byte].decode(errors="ignore"))
