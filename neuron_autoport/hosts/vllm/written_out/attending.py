"""What the rewritten layers call, and the plain attention they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neuron_autoport.hosts.vllm.written_out.facts import Form

# What a model whose layers need no mask names as its attention.
MASKLESS = "neuron_autoport_maskless"
PLAIN = "eager"

_noted: list[list[Callable[..., Any]]] = []


class Attending:
    """Beside the original class: its attention as a call of the interface.

    attention_form: what it computes. attention_call: the interface's function, or `eager` for plain torch.
    """

    attention_form: Form
    attention_call: str

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output and weights of the attention whose two products had these factors.

        Args:
            query: [B, N, T, D] or [B * N, T, D]. key: the same, transposed, [..., D, T]; 1 or N heads.
            value: [..., T, Dv].
        """
        form = self.attention_form
        q, k, v = (_by_heads(x, form.heads) for x in (query, key.transpose(-1, -2), value))
        if self.attention_call == PLAIN:
            out, weights = causal_attention(q, k, v, form)
            out = out.to(value.dtype)
            weights = weights.to(value.dtype).flatten(0, 1 if form.flat_weights else 0)
            return out.flatten(0, 1 if form.flat_out else 0), weights
        function = ALL_ATTENTION_FUNCTIONS[self.attention_call]
        asked: dict[str, Any] = {"scaling": form.scale}
        if form.window is not None:
            asked["sliding_window"] = form.window
        if form.slopes is not None:
            asked["alibi_slopes"] = form.slopes
        out = function(self, q.to(v.dtype), k.to(v.dtype), v, None, **asked)[0].transpose(1, 2)
        return out.flatten(0, 1 if form.flat_out else 0), None


def _by_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x if x.dim() == 4 else x.unflatten(0, (-1, heads))


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: Form
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * q k^T + slope * (key - query)) v over a query's window, in float32 or more.

    Args:
        query: [B, N, T, D]. key: [B, 1 or N, T, D]. value: [B, 1 or N, T, Dv].

    Returns:
        [B, N, T, Dv] and the weights [B, N, T, T].
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    scores = query @ key.transpose(-1, -2) * form.scale
    place = torch.arange(query.shape[-2], device=query.device)
    ahead = place - place[:, None]
    if form.slopes is not None:
        slopes = torch.tensor(form.slopes, dtype=dtype, device=query.device)
        scores = scores + slopes[:, None, None] * ahead
    hidden = ahead > 0
    if form.window is not None:
        hidden = hidden | (ahead <= -form.window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return weights @ value, weights


def _no_mask(mask_function: Callable[..., Any], **kwargs: Any) -> torch.Tensor:
    """A mask that hides nothing, for code that works on the mask it gets; no attention reads it."""
    for noted in _noted:
        noted.append(mask_function)
    return torch.zeros(1, 1, 1, 1, device=kwargs.get("device"))


def _no_attention(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(f"`{MASKLESS}` stands for no mask; no layer may attend by it")


ALL_ATTENTION_FUNCTIONS.register(MASKLESS, _no_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(MASKLESS, _no_mask)
