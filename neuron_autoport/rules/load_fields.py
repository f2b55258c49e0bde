"""The fields of a rule file: which there are and what they must be; and the faults found so far.

What is wrong in one field must not hide what is wrong in another, nor be told again where another leans on it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from neuron_autoport.errors import RuleError
from neuron_autoport.nearest import near
from neuron_autoport.rules.places import Places

# Every field and what it must be.
FIELDS: dict[str, Any] = {
    "rule": str, "summary": str, "role": str, "match": str, "given": str, "where": dict,
    "require": list, "weights": dict, "replace": (str, dict), "refuse": str, "shard": dict,
    "neuron": list, "examples": dict,
}  # fmt: skip
NEXT = "autoport rules show gated_mlp"
_NEEDED = ("rule", "summary", "match")
_SAID = {str: "text", dict: "a mapping", list: "a list", (str, dict): "text, or prefill and decode"}


class FieldReader:
    """One rule file under way: its text, its parsed data, and the faults found so far."""

    def __init__(self, path: Path, data: Any, text: str) -> None:
        self.path, self.data, self.text = path, data, text
        self.places = Places(path, text)
        self.faults: list[str] = []

    def fault(self, message: str, place: str) -> None:
        told = f"{place}: {message}"
        if told not in self.faults:
            self.faults.append(told)

    def raise_faults(self) -> None:
        if not self.faults:
            return
        count = "one fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        what = f"rule file has {count}:\n" + "\n".join(sorted(self.faults, key=self.order))
        raise RuleError(what, None, NEXT)

    def order(self, fault: str) -> tuple[int, int]:
        """Line and column of a fault: it begins with its place."""
        line, column = fault.removeprefix(f"{self.path}:").split(":")[:2]
        return int(line), int(column)

    def box(self, key: str) -> Any:
        return self.data.get(key) or {}

    def check_fields(self) -> set[str]:
        """Check the fields, and make of the data what can be read on.

        Returns:
            Fields that are missing or of another type than they must be.
        """
        for key in list(self.data):
            if key not in FIELDS:
                self.unknown_field(key)
        missing = {k for k in _NEEDED if k not in self.data}
        for key in (k for k in _NEEDED if k in missing):
            self.fault(f"field `{key}` is missing", f"{self.path}:1:1")
        if ("replace" in self.data) == ("refuse" in self.data):
            both = "`replace` or `refuse`: one of them"
            said = f"{both}, not both" if "replace" in self.data else f"{both} is missing"
            self.fault(said, f"{self.path}:1:1")
        self.check_texts()
        wrong = {key for key in self.data if not isinstance(self.data[key], FIELDS[key])}
        for key in (k for k in FIELDS if k in wrong):
            place = self.places.of_value(self.data, key)
            self.fault(f"`{key}` must be {_SAID[FIELDS[key]]}", place)
            del self.data[key]
        return wrong | missing

    def unknown_field(self, key: Any) -> None:
        """Tell it. A misspelt field is then read as the one that was meant, unless the file has that, too."""
        place = self.places.of_key(self.data, key)
        hint = near(str(key), FIELDS)
        more = hint or f"; fields are {', '.join(FIELDS)}"
        self.fault(f"unknown field `{key}`{more}", place)
        meant = hint.split("`")[1] if hint else None
        if meant is not None and meant not in self.data:
            self.data[meant] = self.data[key]
            self.data.lc.data[meant] = self.data.lc.data[key]
        del self.data[key]

    def check_texts(self) -> None:
        if self.data.get("refuse") == "":
            place = self.places.of_value(self.data, "refuse")
            self.fault("`refuse` says why the target has no function for it", place)
        for key, said in (("rule", "rule name"), ("role", "role")):
            name = self.data.get(key)
            if isinstance(name, str) and not re.fullmatch(r"[A-Za-z]\w*", name):
                place = self.places.of_value(self.data, key)
                self.fault(f"`{name}` is no {said}: letters, digits and _", place)

    def unknown_keys(self, box: Any, known: Collection[str]) -> set[str]:
        """Tell keys of a mapping that are unknown; and say which known ones are neither there nor meant."""
        missing = set(known) - set(box)
        for key in (k for k in box if k not in known):
            hint = near(str(key), missing)
            missing -= set(hint.split("`")[1:2])
            hint = hint or f"; there are {', '.join(known)}"
            self.fault(f"unknown field `{key}`{hint}", self.places.of_key(box, key))
        return missing
