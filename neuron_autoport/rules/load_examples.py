"""Read the `examples` of a rule file: modules the rule must fuse, and look-alikes it must leave alone.

Only read and parsed here. An example is Python source, and reading a rule file runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ruamel.yaml.comments import CommentedMap, CommentedSeq

from neuron_autoport.nearest import near
from neuron_autoport.rules.places import Places, character
from neuron_autoport.rules.rule import Example

_KEYS: dict[str, tuple[str, ...]] = {
    "matches": ("source", "input", "init"),
    "rejects": ("because", "source", "input", "init"),
}
_SHAPE_SAID = "`input` is a list of sizes such as [2, 5, 16], or a list of such lists"


def read_examples(
    data: Any, places: Places, fault: Callable[[str, str], None]
) -> dict[str, tuple[Example, ...]]:
    """The examples of a rule file, by `matches` and `rejects`.

    Args:
        data: the whole file, parsed. fault: told a message and its place.
    """
    found: dict[str, tuple[Example, ...]] = dict.fromkeys(_KEYS, ())
    box = data.get("examples") or {}
    for key, items in box.items():
        if key not in _KEYS:
            hint = near(str(key), _KEYS) or "; there are matches and rejects"
            fault(f"unknown field `{key}` of examples{hint}", places.of_key(box, key))
        elif not isinstance(items, CommentedSeq):
            fault(f"`{key}` must be a list", places.of_value(box, key))
        else:
            read = (_Item(key, items, i, places, fault).read() for i in range(len(items)))
            found[key] = tuple(e for e in read if e is not None)
    return found


class _Item:
    """One entry of `matches` or `rejects`."""

    def __init__(
        self, key: str, items: Any, index: int, places: Places, fault: Callable[[str, str], None]
    ) -> None:
        self.key, self.items, self.index = key, items, index
        self.places, self.fault, self.good = places, fault, True

    def wrong(self, message: str, place: str) -> None:
        self.good = False
        self.fault(message, place)

    def read(self) -> Example | None:
        item = self.items[self.index]
        place = self.places.of_value(self.items, self.index)
        if isinstance(item, str) and self.key == "matches":
            return self.example(self.items, self.index, {})
        missing = self.fields(item) if isinstance(item, CommentedMap) else {"source"}
        if "source" in missing:
            needed = "`source`" if self.key == "matches" else "`because` and `source`"
            self.wrong(f"an example of `{self.key}` has {needed}", place)
        elif "because" in missing:
            self.wrong("an example of `rejects` says `because`", place)
        return self.values(item) if isinstance(item, CommentedMap) else None

    def fields(self, item: Any) -> set[str]:
        """Tell the fields that are unknown; what is needed, and neither there nor meant, is returned."""
        missing = {"source"} if self.key == "matches" else {"source", "because"}
        missing -= set(item)
        for name in (n for n in item if n not in _KEYS[self.key]):
            hint = near(str(name), _KEYS[self.key])
            missing -= set(hint.split("`")[1:2])
            hint = hint or f"; there are {', '.join(_KEYS[self.key])}"
            place = self.places.of_key(item, name)
            self.wrong(f"unknown field `{name}` of an example{hint}", place)
        return missing

    def values(self, item: Any) -> Example | None:
        for name in ("because", "source"):
            if name in item and not isinstance(item[name], str):
                self.wrong(f"`{name}` must be text", self.places.of_value(item, name))
        if not isinstance(item.get("init", {}), dict):
            self.wrong("`init` must be a mapping", self.places.of_value(item, "init"))
        if "input" in item and not _shapes(item["input"]):
            self.wrong(_SHAPE_SAID, self.places.of_value(item, "input"))
        text = isinstance(item.get("source"), str)
        made = self.example(item, "source", item) if text else None
        return made if self.good else None

    def example(self, box: Any, key: Any, more: Any) -> Example | None:
        """The example whose source is `box[key]`, if that is Python and has a class."""
        source = str(box[key])
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            place = self.places.of_value(box, key, error.lineno or 1, error.offset or 1)
            self.wrong(f"not Python: {error.msg}", place)
            return None
        except ValueError as error:  # a null character
            self.wrong(f"not Python: {error}", self.places.of_value(box, key))
            return None
        if not any(isinstance(n, ast.ClassDef) for n in tree.body):
            first = tree.body[0] if tree.body else None
            line = first.lineno if first is not None else 1
            column = character(source, line, first.col_offset) if first is not None else 1
            place = self.places.of_value(box, key, line, column)
            self.wrong("the source of an example defines a class", place)
            return None
        return Example(
            source,
            _shapes(more["input"]) if "input" in more else Example.inputs,
            more.get("because"),
            _plain(more.get("init", {})),
            self.places.spot(box, key)[0],
        )


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    """One shape or several; empty if it is neither."""
    if not isinstance(value, list) or not value:
        return ()
    listed = value if isinstance(value[0], list) else [value]
    good = all(
        isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape) for shape in listed
    )
    return tuple(tuple(shape) for shape in listed) if good else ()


def _plain(value: Any) -> Any:
    """YAML's values as Python's own: a ruamel list or float would be seen in the example's graph."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
