"""What one forward call says to the attention layers, and what each layer keeps.

The attention interface of transformers is called with the attention module and tensors only. Everything
else reaches it through `LayerState`, a plain object on the attention module, and the `Call` all layers
share. Both are ordinary Python objects, which torch.compile follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neuron_autoport.hosts.neuron.facts import LayerFacts

if TYPE_CHECKING:
    from neuron_autoport.hosts.neuron.attention_form import AttentionForm


class Call:
    """The step that is running.

    metadata: the runner's dict per layer name. decode: one or a few tokens for each of several
    requests, else one request's prefill. positions: [B, S] absolute. rank: 0-dim tensor. masks: of the
    decode kernel, made once per step. own_tokens: of this rank in a sequence-parallel prefill; 0: every rank
    has all.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, dict[str, Any]] = {}
        self.decode = False
        self.positions: torch.Tensor | None = None
        self.rank: torch.Tensor | None = None
        self.masks: dict[Any, torch.Tensor] = {}
        self.own_tokens = 0

    def start(
        self,
        metadata: dict[str, dict[str, Any]],
        decode: bool,
        positions: torch.Tensor,
        rank: torch.Tensor | None,
        own_tokens: int = 0,
    ) -> None:
        """Begin a step."""
        self.metadata, self.decode, self.own_tokens = metadata, decode, own_tokens
        self.positions, self.rank, self.masks = positions, rank, {}

    def end(self) -> None:
        """Let go of the step's tensors."""
        self.metadata, self.positions, self.rank, self.masks = {}, None, None, {}


class LayerState:
    """One attention layer's facts and cache.

    no_nf: why no NF attention is used, if so. heads, kv_heads: of this rank. form: how the class goes to fused
    calls, if it does: fused_decode, `NF.attention_decode`; fused_heads, QK-norm and RoPE in `NF.qkv_proj`.
    """

    def __init__(
        self, facts: LayerFacts, call: Call, no_nf: str | None, heads: int, kv_heads: int
    ) -> None:
        self.facts, self.call, self.no_nf = facts, call, no_nf
        self.heads, self.kv_heads = heads, kv_heads
        self.name = facts.path
        self.form: AttentionForm | None = None
        self.fused_decode = self.fused_heads = False
        self.k_cache: torch.Tensor | None = None
        self.v_cache: torch.Tensor | None = None
