"""The call contract as data: parameters, defaults, modules and enums, from signatures.json.

The double's functions get their argument lists from this file, so they cannot differ from it.
"""

from __future__ import annotations

import ast
import json
from enum import Enum
from pathlib import Path
from typing import Any, cast

import torch

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "signatures.json").read_text())
FUNCTIONS: dict[str, Any] = TABLE["functions"]


def _make_enums() -> dict[str, type[Enum]]:
    """The plugin's enums: the contract's members, with values that are nobody's business."""
    made: dict[str, type[Enum]] = {}
    for name, row in TABLE["enums"].items():
        members = [(member, 100 + i) for i, member in enumerate(row["members"])]
        made[name] = cast(type[Enum], Enum(name, members, module=row["module"]))
    return made


ENUMS: dict[str, type[Enum]] = _make_enums()


class KernelDtype(Enum):
    """A dtype of `nki.language`, such as nl.bfloat16: a marker with a name."""

    bfloat16 = "bfloat16"


NL_BFLOAT16 = KernelDtype.bfloat16
ENUMS["KernelDtype"] = KernelDtype


def default(text: str) -> object:
    """The value of a default written as Python source."""
    owner, _, member = text.partition(".")
    if owner in ENUMS:
        return ENUMS[owner][member]
    if owner == "torch":
        return getattr(torch, member)
    if text == "nl.bfloat16":
        return NL_BFLOAT16
    value: object = ast.literal_eval(text)
    return value


def defaults(parameters: list[list[Any]]) -> dict[str, object]:
    """Parameter -> default, for those that have one."""
    return {name: default(text) for name, text in parameters if text is not None}
