"""Where in a rule file a value stands: line and column, also of a character inside its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap, CommentedSeq


class Places:
    """Positions in one parsed file.

    Args:
        path: of the file. text: all of it.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = path, text.split("\n")

    def of_key(self, box: Any, key: Any) -> str:
        """`file:line:column` of a key of a mapping."""
        return self._text(*box.lc.key(key))

    def of_value(self, box: Any, key: Any, line: int = 1, column: int = 1) -> str:
        """`file:line:column` of a value, or of a character inside it.

        Args:
            box: mapping or sequence that holds it. key: its key or index.
            line, column: inside the value's text, from 1.
        """
        row, start = self.spot(box, key, line, column)
        return self._text(row - 1, start - 1)

    def spot(self, box: Any, key: Any, line: int = 1, column: int = 1) -> tuple[int, int]:
        """The same as numbers: line and column, from 1."""
        if not isinstance(box, CommentedMap | CommentedSeq):
            return 1, 1
        row, start = box.lc.value(key) if isinstance(box, CommentedMap) else box.lc.item(key)
        if (
            isinstance(box, CommentedMap) and box[key] is None
        ):  # ruamel gives the place of what follows
            row, start = box.lc.key(key)
        first = self.lines[row][start : start + 1] if row < len(self.lines) else ""
        if first and first in "|>":
            return row + line + 1, self._indent_below(row) + column
        if first and first in "'\"":
            start += 1
        return row + 1, start + column

    def _indent_below(self, row: int) -> int:
        """Indentation of a block of text whose header is on line `row`."""
        filled = (x for x in self.lines[row + 1 :] if x.strip())
        below = next(filled, "")
        return len(below) - len(below.lstrip())

    def _text(self, row: int, column: int) -> str:
        return f"{self.path}:{row + 1}:{column + 1}"


def character(text: str, line: int, byte: int) -> int:
    """Column in characters, from 1, of a UTF-8 byte offset of Python's ast."""
    lines = text.split("\n")
    found = lines[line - 1] if 1 <= line <= len(lines) else ""
    return len(found.encode()[:byte].decode(errors="ignore")) + 1
