"""A Llama written by hand against the plugin's contract; with a window it is a Mistral.

It judges the double and the runner: its greedy tokens must be those of Hugging Face. It uses the
plugin as a bundled model would: fused QKV with RoPE, cache writes by index, flash or segmented
attention in prefill, `attention_decode` with the generated mask in decode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.neuron.reference import loading
from tests.neuron.reference.attention import Attention

Metadata = dict[str, dict[str, Any]]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of x [T, H], computed in fp32, weight applied in the dtype of x."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return weight * y.to(x.dtype)


class Layer(nn.Module):
    """One decoder layer; residual on [T, H], or on the rank's tokens with sequence parallelism."""

    def __init__(self, model: ReferenceLlama, index: int) -> None:
        super().__init__()
        config = model.config
        self.self_attn = Attention(model, index)
        hidden, inner = config.hidden_size, config.intermediate_size // model.group.world_size
        self.input_norm = nn.Parameter(torch.empty(hidden))
        self.post_norm = nn.Parameter(torch.empty(hidden))
        self.gate = nn.Parameter(torch.empty(hidden, inner))
        self.up = nn.Parameter(torch.empty(hidden, inner))
        self.down = nn.Parameter(torch.empty(inner, hidden))
        self.eps = config.rms_norm_eps

    def forward(
        self, x: Tensor, positions: Tensor, metadata: Metadata, parallel: Parallel
    ) -> Tensor:
        """x [T, H] or [T / tp, H] -> the same."""
        import vllm_neuron.functional as NF

        y = parallel.gather(rms_norm(x, self.input_norm, self.eps))
        y = self.self_attn(y, positions, metadata[self.self_attn.name])
        x = x + parallel.reduce(y)
        y = parallel.gather(rms_norm(x, self.post_norm, self.eps))
        return x + parallel.reduce(NF.mlp(y, self.gate, self.up, self.down))


class Parallel:
    """Where the collectives of one step stand: all-reduce, or gather and scatter over tokens."""

    def __init__(self, group: Any, scattered: bool) -> None:
        self.group, self.scattered = group, scattered

    def gather(self, x: Tensor) -> Tensor:
        """The rank's tokens -> all tokens."""
        gathered: Tensor = self.group.all_gather(x, 0) if self.scattered else x
        return gathered

    def reduce(self, x: Tensor) -> Tensor:
        """Partial sums of all tokens -> sums of all, or of the rank's tokens."""
        if self.scattered:
            scattered: Tensor = self.group.reduce_scatter(x, 0)
            return scattered
        self.group.all_reduce(x)
        return x


class ReferenceLlama(nn.Module):
    """The model class the runner drives."""

    is_text_generation_model = True
    sequence_parallel = False

    def __init__(self, config: Any, neuron_config: Any) -> None:
        super().__init__()
        from vllm.distributed.parallel_state import get_tp_group
        from vllm_neuron.nn import ColumnParallelLinear
        from vllm_neuron.nn.embedding import VocabDimShardedEmbedding
        from vllm_neuron.nn.sampler import Sampler

        self.config, self.neuron_config = config, neuron_config
        self.group = get_tp_group()
        loading.check_sizes(config, self.group.world_size)
        devices = self.group.device_group
        self.dtype = config.dtype
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embed = VocabDimShardedEmbedding(vocab, hidden, dtype=self.dtype, tp_group=devices)
        self.layers = nn.ModuleList(Layer(self, i) for i in range(config.num_hidden_layers))
        self.norm = nn.Parameter(torch.empty(hidden))
        sampling = neuron_config.on_device_sampling_config
        self.lm_head = ColumnParallelLinear(
            hidden,
            vocab,
            bias=False,
            gather_output=sampling is None,
            dtype=self.dtype,
            tp_group=devices,
        )
        self.sampler = None if sampling is None else Sampler(sampling, devices)
        self.to(self.dtype)

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: Any = None) -> ReferenceLlama:
        """The model on meta."""
        return cls(hf_config, neuron_config)

    def load_weights(self, path: str, device: torch.device, cache_dir: str | None = None) -> None:
        """Fuse, transpose and shard while reading."""
        loading.load(self, path, device, cache_dir)

    def get_kv_spec(self) -> Any:
        """One spec per layer."""
        from vllm_neuron.model.kv_cache import KVSpec

        layers: Any = self.layers
        return KVSpec(layers=[layer.self_attn.spec() for layer in layers])

    def bind_kv_cache(self, caches: dict[str, list[Tensor]]) -> None:
        """Keep references on the attention modules."""
        for layer in self.layers:
            attention: Any = layer.self_attn
            attention.k_cache, attention.v_cache = caches[attention.name]

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """For vLLM's front end only."""
        raise NotImplementedError

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """For vLLM's front end only."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attn_metadata: Metadata,
        sampling_positions: Tensor,
        sampling_params: Tensor | None = None,
        spec_decode_metadata: Any = None,
        rank: Tensor | None = None,
        logit_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """One step; the return value follows the sampling mode."""
        first: Any = self.layers[0].self_attn
        entry = attn_metadata[first.name]
        decode = entry["max_query_len"] <= entry["decode_token_threshold"]
        parallel = Parallel(self.group, self.sequence_parallel and not decode)
        x = self.embed(input_ids, scatter_tokens=parallel.scattered, rank=rank)
        for layer in self.layers:
            x = layer(x, positions, attn_metadata, parallel)
        x = parallel.gather(rms_norm(x, self.norm, self.config.rms_norm_eps))
        logits = self.lm_head(x[sampling_positions])
        if self.sampler is None:
            return logits
        tokens = self.sampler(logits, sampling_params, logit_mask=logit_mask, tp_rank=rank)
        wanted = self.neuron_config.max_logprobs or self.neuron_config.debug_logits_dir
        return tokens, self.group.all_gather(logits, 1) if wanted else None
