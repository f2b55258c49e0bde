"""How a causal language model is called with token ids, whatever its forward names them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def call_of(model: nn.Module, inputs: dict[str, Any]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Arguments of `model`: `inputs` by name, but ids as the first where forward has another name for them.

    Args:
        inputs: `input_ids`, and options that are left out where forward does not take them.
    """
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        taken = dict(inputs)
    else:
        taken = {name: value for name, value in inputs.items() if name in parameters}
    named = [p.name for p in parameters.values() if p.kind in _BY_POSITION]
    if "input_ids" in parameters or not named:
        return (), {"input_ids": inputs["input_ids"], **taken}
    taken.pop("input_ids", None)
    return (inputs["input_ids"],), taken
