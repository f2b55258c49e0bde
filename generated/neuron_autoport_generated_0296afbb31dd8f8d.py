"""LlamaForCausalLM of transformers 5.19.0, rewritten by neuron-autoport.

Each class is the original with another forward; rewritten places are marked `# autoport: RULE`.
"""

from __future__ import annotations

import transformers.models.llama.modeling_llama as upstream_modeling_llama
from neuron_autoport import kernels as NK
from neuron_autoport import nf as NF
from transformers.models.llama.modeling_llama import (
    ALL_ATTENTION_FUNCTIONS,
    Cache,
    Callable,
    TransformersKwargs,
    Unpack,
    apply_rotary_pos_emb,
    eager_attention_forward,
    torch,
)


class LlamaRMSNorm(upstream_modeling_llama.LlamaRMSNorm):
    """`LlamaRMSNorm` with a rewritten forward."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # autoport: rms_norm
        return NK.rms_norm(hidden_states, self.weight, eps=1e-05)


class LlamaAttention(upstream_modeling_llama.LlamaAttention):
    """`LlamaAttention` with a rewritten forward."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)

        # autoport: qkv_proj
        q, k, v = NF.qkv_proj(hidden_states, self.qkv_weight).split(self.qkv_sizes, dim=-1)
        query_states = q.view(hidden_shape).transpose(1, 2)
        key_states = k.view(hidden_shape).transpose(1, 2)
        value_states = v.view(hidden_shape).transpose(1, 2)

        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)

        if past_key_values is not None:
            key_states, value_states = past_key_values.update(key_states, value_states, self.layer_idx)

        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )

        attn_output, attn_weights = attention_interface(
            self,
            query_states,
            key_states,
            value_states,
            attention_mask,
            dropout=0.0 if not self.training else self.attention_dropout,
            scaling=self.scaling,
            **kwargs,
        )

        attn_output = attn_output.reshape(*input_shape, -1).contiguous()
        # autoport: o_proj
        attn_output = NF.o_proj(attn_output, self.o_proj_weight)
        return attn_output, attn_weights


class LlamaMLP(upstream_modeling_llama.LlamaMLP):
    """`LlamaMLP` with a rewritten forward."""

    def forward(self, x):
        # autoport: gated_mlp
        down_proj = NF.mlp(
            x.flatten(0, -2),
            self.gate_proj_weight,
            self.up_proj_weight,
            self.down_proj_weight,
            act_fn=NF.ActFnType.SiLU,
        ).unflatten(0, x.shape[:-1])
        return down_proj
