"""The NF functions have exactly the contract's parameters, order, defaults and enum members."""

from __future__ import annotations

import ast
import inspect
import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_autoport import nf as NF

CONTRACT: dict[str, Any] = json.loads((Path(__file__).parent / "signatures.json").read_text())


def default_as_text(value: object) -> object:
    """A default in the table's notation: null if required, "Enum.MEMBER", or a literal's value."""
    if value is inspect.Parameter.empty:
        return None
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return ("literal", type(value), value)


def table_default(text: str | None) -> object:
    """A dtype of nki's is its name here: the package is not imported, and the plugin's own default stands."""
    if text is None or text.partition(".")[0] in CONTRACT["enums"]:
        return text
    if text.startswith(("torch.", "nl.")):
        value = getattr(torch, text.removeprefix("torch.")) if text.startswith("torch") else text
        return ("literal", type(value), value)
    value = ast.literal_eval(text)
    return ("literal", type(value), value)


@pytest.mark.parametrize("name", CONTRACT["functions"])
def test_parameters_order_and_defaults(name: str) -> None:
    parameters = inspect.signature(getattr(NF, name)).parameters.values()
    got = [(each.name, default_as_text(each.default)) for each in parameters]
    want = [(parameter, table_default(text)) for parameter, text in CONTRACT["functions"][name]]
    assert got == want
    assert {each.kind for each in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.parametrize("name", CONTRACT["enums"])
def test_enum_members(name: str) -> None:
    assert [each.name for each in getattr(NF, name)] == CONTRACT["enums"][name]


def test_counts_of_the_contract_page() -> None:
    """The contract's page numbers the parameters. Guards the copied table itself."""
    assert {name: len(rows) for name, rows in CONTRACT["functions"].items()} == {
        "qkv_proj": 55,
        "o_proj": 6,
        "mlp": 28,
        "flash_attention": 18,
        "segmented_attention": 15,
        "attention_decode": 57,
        "gen_attention_decode_mask": 9,
        "router": 16,
        "build_blockwise_mapping": 8,
        "moe_cte": 41,
        "moe_block_tkg": 37,
        "get_local_expert_affinities": 2,
    }
