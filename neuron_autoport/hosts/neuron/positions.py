"""Tables of learned positions: sequences longer than the table are refused before weights are read.

Which embedding looks positions up, and from which row on, is seen in a run of a small model of the same kind:
the rows it takes follow each other, whatever the tokens are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from neuron_autoport.hosts.neuron.engine import longest_sequence
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.probe import base_model
from neuron_autoport.models.build import real_model
from neuron_autoport.models.source import ModelSource

_TOKENS = 9


def check_positions(model: Any, small: ModelSource, where: str) -> None:
    """Refuse sequences that a model has no positions for.

    Args:
        model: the whole model; meta. small: a small one of its kind, see `models.tiny`.

    Raises:
        NeuronHostError: with the longest sequence that can be served.
    """
    longest, words = longest_sequence(), model.get_input_embeddings()
    tables = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module is not words
    }
    if longest is None or not tables:
        return
    for path, first in _first_rows(small).items():
        held = tables[path].num_embeddings - first if path in tables else longest
        if longest > held:
            raise refuse(
                f"{where}: {path} holds {held} positions, and sequences of {longest} are asked for",
                where,
                f"--max-model-len {held}",
            )


def _first_rows(small: ModelSource) -> dict[str, int]:
    """Row of the first position, by the path of each embedding that looks positions up."""
    model = real_model(small, dtype=torch.float32, attn_implementation="eager")
    vocabulary = int(small.text_config.vocab_size)
    ids = torch.tensor([[(5 + 11 * i) % (vocabulary - 1) + 1 for i in range(_TOKENS)]])
    with torch.no_grad(), _LookUps() as seen:
        base_model(model)(input_ids=ids, use_cache=False)
    found = {}
    for path, module in model.named_modules():
        rows = seen.rows.get(id(getattr(module, "weight", None)))
        if rows is None or rows.numel() % _TOKENS:
            continue
        one = rows.flatten()[:_TOKENS]
        if bool((one.diff() == 1).all()):
            found[path] = int(one[0])
    return found


class _LookUps(TorchFunctionMode):
    """Notes which rows of each table are taken. rows: by the table's identity."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.embedding:
            rows, table = args[:2]
            self.rows[id(table)] = rows
        return func(*args, **(kwargs or {}))
