"""Level 2 in this process: reference and port on whole prompts, by teacher forcing, in every way of running.

whole: one forward over the prompt, no cache. chunks: the prompt in pieces, through the KV cache. decode: a
start, then token by token, through the cache. batch: all prompts at once, padded on the right.
Each gives logits at every position, given the prompt's own tokens before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

MODES = ("whole", "chunks", "decode", "batch")


@dataclass
class Forced:
    """Logits of one prompt [positions, vocabulary] in float32, and the KV cache after it, if any.

    cache: for each layer (keys, values) [1, heads, positions, width]; only the last window of a
    window layer may be there.
    """

    logits: Tensor
    cache: list[tuple[Tensor, Tensor]] | None = None


def force(
    model: Any, ids: tuple[int, ...], mode: str, *, chunk: int, start: int
) -> Forced:  # fmt: skip
    """Run one prompt in one of the modes but batch.

    Args:
        chunk: tokens per piece. start: tokens before decoding begins.
    """
    tokens = torch.tensor([ids])
    with torch.no_grad():
        if mode == "whole":
            output = model(input_ids=tokens, use_cache=True)
            return Forced(output.logits[0].float(), cache_of(output))
        if mode == "chunks":
            return _pieces(model, list(tokens.split(chunk, dim=1)))
        head = [tokens[:, :start]] if start else []
        return _pieces(model, head + list(tokens[:, start:].split(1, dim=1)))


def _pieces(model: Any, pieces: list[Tensor]) -> Forced:
    logits: list[Tensor] = []
    state: Any = None
    output: Any = None
    done = 0
    for piece in pieces:
        done += piece.shape[1]
        output = model(
            input_ids=piece,
            past_key_values=state,
            use_cache=True,
            attention_mask=torch.ones(1, done, dtype=torch.long),
        )
        state = output.past_key_values
        logits.append(output.logits[0].float())
    return Forced(torch.cat(logits), cache_of(output))


def force_batch(model: Any, prompts: list[tuple[int, ...]], pad: int) -> list[Forced]:
    """Run all prompts at once, padded on the right with `pad` and masked."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
        mask[row, : len(prompt)] = 1
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return [Forced(logits[row, : len(p)].float()) for row, p in enumerate(prompts)]


def cache_of(output: Any) -> list[tuple[Tensor, Tensor]] | None:
    """Keys and values of each layer that keeps any; None if the model keeps something else."""
    layers = getattr(getattr(output, "past_key_values", None), "layers", None)
    if layers is None:
        return None
    found = []
    for layer in layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if isinstance(keys, Tensor) and isinstance(values, Tensor) and keys.dim() == 4:
            found.append((keys.clone(), values.clone()))
    return found or None


Runner = Callable[[nn.Module], list[Forced]]


def runner(
    mode: str, prompts: list[tuple[int, ...]], *, chunk: int, steps: int, pad: int
) -> Runner:
    """A function that runs all prompts in a mode.

    Args:
        chunk: tokens of a piece. steps: tokens decoded one by one at the end of each prompt.
    """
    if mode == "batch":
        return lambda model: force_batch(model, prompts, pad)

    def run(model: nn.Module) -> list[Forced]:
        return [
            force(model, p, mode, chunk=chunk, start=max(1, len(p) - steps)) for p in prompts
        ]  # fmt: skip

    return run
