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
        value = box[key]
        if not isinstance(value, str) or not first:
            return row + 1, start + column
        if first in "|>":
            below = (i for i, x in enumerate(self.lines[row + 1 :], row + 1) if x.strip())
            body = next(below, row)
            # Of a first line that is indented further the value has the rest.
            start = self._indent_below(row) - (len(value) - len(value.lstrip(" ")))
            if first == "|":
                return row + line + 1, start + column
            row = body
        elif first in "'\"":
            start += 1
        return self._walk(row, start, first, value, _index(value, line, column))

    def _walk(self, row: int, start: int, quote: str, value: str, index: int) -> tuple[int, int]:
        """Where the character `index` of a value stands that may go over several lines, as numbers from 1.

        Lines are joined with a space there, quotes doubled and characters escaped.

        Args:
            row, start: of the value's first character, from 0. quote: what it begins with, if that is one.
        """
        after = "\n".join(self.lines[row:])
        at, i = start, 0
        while at < len(after):
            if (
                quote == '"' and after[at : at + 2] == "\\\n"
            ):  # the line goes on, nothing stands for it
                at = _past_space(after, at + 2)
            elif i >= index:
                break
            elif value[i].isspace() and after[at].isspace():
                at, i = _past_space(after, at), _past_space(value, i)
            else:
                at, i = at + _written_length(after[at : at + 2], quote), i + 1
        upto = after[:at]
        return row + upto.count("\n") + 1, len(upto) - upto.rfind("\n") + (index - i)

    def _indent_below(self, row: int) -> int:
        """Indentation of a block of text whose header is on line `row`."""
        filled = (x for x in self.lines[row + 1 :] if x.strip())
        below = next(filled, "")
        return len(below) - len(below.lstrip())

    def _text(self, row: int, column: int) -> str:
        return f"{self.path}:{row + 1}:{column + 1}"


def _index(text: str, line: int, column: int) -> int:
    """The character of a text at a line and column, both from 1."""
    return sum(len(x) + 1 for x in text.split("\n")[: line - 1]) + column - 1


def _past_space(text: str, at: int) -> int:
    """The next character that is none."""
    return len(text) - len(text[at:].lstrip())


def _written_length(written: str, quote: str) -> int:
    """Characters that one of a quoted value takes. written: the first two of them."""
    if quote == '"' and written[:1] == "\\":
        return {"x": 4, "u": 6, "U": 10}.get(written[1:], 2)
    return 2 if quote == "'" and written == "''" else 1


def character(text: str, line: int, byte: int) -> int:
    """Column in characters, from 1, of a UTF-8 byte offset of Python's ast."""
    lines = text.split("\n")
    found = lines[line - 1] if 1 <= line <= len(lines) else ""
    return len(found.encode()[:byte].decode(errors="ignore")) + 1
