"""Rotary embeddings that change with the length of the sequence, fixed before a graph is made of them.

Such an embedding looks at the positions of a batch and picks other frequencies when they are long. A
compiled graph cannot, and keys already in the cache keep the old ones. They are served only where all
sequences stay below the length at which the frequencies change.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from neuron_autoport.hosts.neuron.engine import longest_sequence
from neuron_autoport.hosts.neuron.errors import refuse


def _changing(model: nn.Module) -> list[tuple[str, Any, list[str | None]]]:
    """(path, module, layer types) of the rotary embeddings that change; a layer type of None is all."""
    found: list[tuple[str, Any, list[str | None]]] = []
    for path, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        by_type = kinds if isinstance(kinds, dict) else {None: kinds}
        changing = [
            t
            for t, k in by_type.items()
            if isinstance(k, str) and ("dynamic" in k or k == "longrope")
        ]
        if changing:
            found.append((path, module, changing))
    return found


def check_rope(model: Any, where: str) -> None:
    """Refuse a model whose frequencies would change within the longest sequence.

    Raises:
        NeuronHostError: with the length up to which it can be served.
    """
    longest = longest_sequence() or getattr(model.config, "max_position_embeddings", None)
    for path, module, kinds in _changing(model):
        for kind in kinds:
            parameters = module.config.rope_parameters
            parameters = parameters if kind is None else parameters[kind]
            limit = parameters.get("original_max_position_embeddings")
            limit = limit or getattr(module, "original_max_seq_len", 0)
            if longest is None or longest > limit:
                raise refuse(
                    f"{where}: {path} uses other frequencies beyond {limit} positions, and sequences "
                    f"of {longest or 'any length'} are asked for",
                    where,
                    f"--max-model-len {limit}",
                )


def freeze_rope(model: nn.Module) -> None:
    """Keep the frequencies that the buffers hold now."""
    for _, module, kinds in _changing(model):
        if isinstance(module.rope_type, dict):
            module.rope_type = {**module.rope_type, **dict.fromkeys(kinds, "default")}
        else:
            module.rope_type = "default"
