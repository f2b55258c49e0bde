"""The reference model's attention: prefill over the call or the cache, decode over the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tests.neuron.reference.llama import ReferenceLlama

Entry = dict[str, Any]


class Attention(nn.Module):
    """Grouped-query attention with RoPE, its KV heads replicated when there are fewer than ranks."""

    def __init__(self, model: ReferenceLlama, index: int) -> None:
        super().__init__()
        config, ranks = model.config, model.group.world_size
        self.name = f"layers.{index}.self_attn"
        self.dim = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.q_heads = config.num_attention_heads // ranks
        self.kv_heads = max(1, config.num_key_value_heads // ranks)
        kinds = getattr(config, "layer_types", None)
        windowed = kinds is None or kinds[index] == "sliding_attention"
        self.window: int | None = getattr(config, "sliding_window", None) if windowed else None
        self.theta = float(config.rope_parameters["rope_theta"])
        self.dtype = config.dtype
        columns = (self.q_heads + 2 * self.kv_heads) * self.dim
        hidden = config.hidden_size
        self.qkv = nn.Parameter(torch.empty(hidden, columns))
        self.o = nn.Parameter(torch.empty(self.q_heads * self.dim, hidden))
        biased = getattr(config, "attention_bias", False)
        self.qkv_bias = nn.Parameter(torch.empty(columns)) if biased else None
        self.o_bias = nn.Parameter(torch.empty(hidden)) if biased else None
        self.k_cache: Tensor
        self.v_cache: Tensor

    def spec(self) -> Any:
        """This layer's cache, per rank."""
        from vllm_neuron.model.kv_cache import LayerSpec

        return LayerSpec(self.name, self.kv_heads, self.dim, self.dtype, self.window)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, d / 2], in the model's dtype."""
        powers = (
            torch.arange(0, self.dim, 2, dtype=torch.float32, device=positions.device) / self.dim
        )
        angles = positions.float()[:, None] * (1.0 / self.theta**powers)[None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def slots(self, entry: Entry) -> Tensor:
        """Write slots [T]; whatever is no slot of the cache goes to slot 0 of the null block."""
        slots = entry["slot_mapping"]
        inside = (slots >= 0) & (slots < self.k_cache.shape[0] * entry["block_size"])
        return torch.where(inside, slots, torch.zeros_like(slots))

    def _bias(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else bias[None]

    def forward(self, x: Tensor, positions: Tensor, entry: Entry) -> Tensor:
        """x [T, H] (normed) -> [T, H], a partial sum over the ranks."""
        if entry["max_query_len"] <= entry["decode_token_threshold"]:
            return self.decode(x, positions, entry)
        return self.prefill(x, positions, entry)

    def prefill(self, x: Tensor, positions: Tensor, entry: Entry) -> Tensor:
        """One request: over the tokens of this call, or over the cache once they are in it."""
        import vllm_neuron.functional as NF

        cos, sin = self.rope(positions)
        fused = NF.qkv_proj(
            x[None],
            self.qkv,
            bias=self._bias(self.qkv_bias),
            d_head=self.dim,
            cos_cache=torch.cat([cos, cos], -1)[None],
            sin_cache=torch.cat([sin, sin], -1)[None],
            num_q_heads=self.q_heads,
            num_kv_heads=self.kv_heads,
        )[0]
        heads = fused.view(-1, self.q_heads + 2 * self.kv_heads, self.dim)
        q, k, v = heads.split([self.q_heads, self.kv_heads, self.kv_heads], 1)
        self.write(k, v, entry)
        attended = self.segmented(q, entry) if entry["kv_segment_size"] else self.flash(q, k, v)
        return NF.o_proj(attended[None], self.o, self._bias(self.o_bias))[0]

    def write(self, k: Tensor, v: Tensor, entry: Entry) -> None:
        """Put k, v [T, kvh, d] at their slots."""
        slots = self.slots(entry)
        head = torch.arange(self.kv_heads, device=k.device)[None, :]
        block = (slots // entry["block_size"])[:, None]
        offset = (slots % entry["block_size"])[:, None]
        self.k_cache.index_put_((block, head, offset), k)
        self.v_cache.index_put_((block, head, offset), v)

    def flash(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[Nh, d, T] from the tokens of this call."""
        import vllm_neuron.functional as NF

        return NF.flash_attention(
            q.permute(1, 2, 0).contiguous(),
            k.permute(1, 2, 0).contiguous(),
            v.transpose(0, 1).contiguous(),
            tp_q=False,
            tp_out=True,
            sliding_window=self.window,
        )

    def segmented(self, q: Tensor, entry: Entry) -> Tensor:
        """[Nh, d, T] from the cache, this chunk included."""
        import vllm_neuron.functional as NF

        return NF.segmented_attention(
            q.transpose(0, 1).contiguous(),
            self.k_cache,
            self.v_cache,
            entry["block_table_tensor"],
            entry["cached_seq_len"].expand(self.q_heads, 1).contiguous(),
            entry["block_size"],
            entry["kv_segment_size"],
            tp_out=True,
            sliding_window=self.window,
        )

    def decode(self, x: Tensor, positions: Tensor, entry: Entry) -> Tensor:
        """One token of each request, over the cache."""
        import vllm_neuron.functional as NF

        rows = x.shape[0]
        cos, sin = (t.view(rows, 1, -1).permute(2, 0, 1) for t in self.rope(positions))
        table = entry["block_table_tensor"]
        return NF.attention_decode(
            x.view(rows, 1, -1),
            W_qkv=self.qkv,
            bias_qkv=self._bias(self.qkv_bias),
            cos=cos,
            sin=sin,
            active_blocks_table=table,
            K_cache=self.k_cache,
            V_cache=self.v_cache,
            attention_mask=self.mask(positions, entry),
            update_cache=True,
            kv_cache_update_idx=self.slots(entry).view(rows, 1).to(torch.int32),
            W_out=self.o,
            bias_out=self._bias(self.o_bias),
        )

    def mask(self, positions: Tensor, entry: Entry) -> Tensor:
        """The decode mask; a sliding window is counted in the frame of its trimmed table."""
        import vllm_neuron.functional as NF

        rows = positions.shape[0]
        at = positions.to(torch.int32)
        start = None
        if self.window is not None:
            at = (at - entry["swa_kv_pos_offset"]).clamp(min=0)
            start = (at - self.window + 1).clamp(min=0).float()[None]
        return NF.gen_attention_decode_mask(
            at.float()[None],
            rows,
            self.q_heads,
            1,
            entry["block_table_tensor"].shape[1] * entry["block_size"],
            start_pos=start,
            block_len=entry["block_size"],
        )
