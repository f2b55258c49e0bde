"""The class the plugin's runner drives: a Hugging Face model, ported, behind the plugin's contract.

Life: `from_configs` on the meta device, `load_weights`, `get_kv_spec`, `bind_kv_cache`, then `forward` for
every step. The runner's flat tokens become [B, S]: one request's tokens in prefill, several requests in
decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PretrainedConfig

from neuron_autoport.hosts.neuron.call import Call, LayerState
from neuron_autoport.hosts.neuron.checkpoint import open_checkpoint
from neuron_autoport.hosts.neuron.engine import Ranks, kv_classes
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.head import VocabHead
from neuron_autoport.hosts.neuron.loading import Loading
from neuron_autoport.hosts.neuron.sampling import Sampling
from neuron_autoport.nf.phase import set_decoding

if TYPE_CHECKING:
    from neuron_autoport.hosts.neuron.plan import HostPlan


@dataclass(frozen=True, eq=False)
class Parts:
    """What a hosted model is made of; see `build`."""

    base: nn.Module
    head: VocabHead
    layers: list[LayerState]
    call: Call
    ranks: Ranks
    sampling: Sampling
    loading: Loading
    host_plan: HostPlan | None
    dtype: torch.dtype
    sequence_parallel: bool = False


class NeuronTransformersForCausalLM(nn.Module):
    """A ported causal language model. Made by `from_configs` only.

    model: the Hugging Face base model with rewritten classes. lm_head: this rank's part of the head.
    host_plan: what runs in a kernel and what does not, and why; an exported package has it in its README.
    """

    is_text_generation_model = True

    def __init__(
        self, parts: Parts | None = None, *, vllm_config: Any = None, prefix: str = ""
    ) -> None:
        # vLLM's front end takes a class for a text model only if it could be given a `vllm_config`.
        super().__init__()
        if parts is None:
            raise refuse(
                f"{type(self).__name__} is made by from_configs, by the Neuron plugin's runner"
            )
        self.model, self.lm_head, self.sampling = parts.base, parts.head, parts.sampling
        self.layer_states = {layer.name: layer for layer in parts.layers}
        self.call, self.ranks, self.loading = parts.call, parts.ranks, parts.loading
        self.host_plan, self.dtype = parts.host_plan, parts.dtype
        self.first_layer = parts.layers[0].name
        self.sequence_parallel = parts.sequence_parallel

    @classmethod
    def from_configs(
        cls,
        hf_config: PretrainedConfig,
        neuron_config: Any = None,
        text_neuron_config: Any = None,
        vision_neuron_config: Any = None,
    ) -> Any:
        """Build the ported model of a configuration, every parameter on the meta device.

        Raises:
            NeuronHostError: the model, or this way of serving it, is not possible; by name and reason.
        """
        if vision_neuron_config is not None:
            raise refuse("the model has a vision part; only text models are served")
        return cls.built(hf_config, neuron_config or text_neuron_config)

    @classmethod
    def built(cls, config: PretrainedConfig, neuron_config: Any) -> Any:
        """The model of a configuration, every parameter on the meta device."""
        from neuron_autoport.hosts.neuron.build import build

        return build(cls, config, neuron_config)

    def load_weights(
        self,
        model_name_or_path: str,
        device: torch.device | str = "cpu",
        cache_dir: str | None = None,
    ) -> None:
        """Load this rank's weights, one parameter at a time, and the buffers.

        Raises:
            NeuronHostError: a tensor is missing or has another shape; with its name.
        """
        self.loading.load(self, open_checkpoint(model_name_or_path, cache_dir), device)

    def load_weights_lite(
        self, model_name_or_path: str, device: torch.device | str = "cpu", cache_dir: Any = None
    ) -> None:
        """Everything but the weights, for compiling without a device."""
        self.loading.skip(self, device)

    def get_kv_spec(self) -> Any:
        """One `LayerSpec` per attention layer; head counts are those of a rank."""
        spec, layer_spec = kv_classes()
        return spec(
            layers=[
                layer_spec(
                    name=layer.name,
                    num_kv_heads=layer.kv_heads,
                    head_size=layer.facts.head_dim,
                    dtype=self.dtype,
                    sliding_window_size=layer.facts.window,
                )
                for layer in self.layer_states.values()
            ]
        )

    def bind_kv_cache(self, caches: dict[str, list[torch.Tensor]]) -> None:
        """Keep the cache tensors [blocks, kv heads, block size, D] on the attention layers.

        Raises:
            NeuronHostError: a layer has no cache, or one of another shape or kind.
        """
        for name, layer in self.layer_states.items():
            if name not in caches:
                raise refuse(f"no cache was bound for {name}")
            for cache in caches[name]:
                wanted = (layer.kv_heads, layer.facts.head_dim)
                if cache.dim() != 4 or (cache.shape[1], cache.shape[3]) != wanted:
                    raise refuse(
                        f"{name}: a cache {list(cache.shape)} where [blocks, {wanted[0]}, block size, "
                        f"{wanted[1]}] is served"
                    )
                if cache.dtype.itemsize == 1:
                    raise refuse(f"{name}: an FP8 cache; only floating-point caches are served")
            layer.k_cache, layer.v_cache = caches[name]

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attn_metadata: dict[str, dict[str, Any]],
        sampling_positions: torch.Tensor,
        sampling_params: torch.Tensor | None = None,
        spec_decode_metadata: Any = None,
        rank: torch.Tensor | None = None,
        logit_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """One step. Arguments and result are the plugin's contract.

        Args:
            input_ids: int [T]. positions: int [T]. attn_metadata: dict per layer name.
            sampling_positions: int [R], rows to sample. sampling_params: float32 [R, 3].
            rank: 0-dim, the tensor-parallel rank. logit_mask: bool [R, V] or [R, V / ranks].

        Returns:
            Logits [R, V] without on-device sampling, else (tokens int32 [R], logits [R, V] or None).
        """
        if spec_decode_metadata is not None:
            raise refuse("speculative decoding is not served")
        entry = attn_metadata[self.first_layer]
        decode = entry["max_query_len"] <= entry["decode_token_threshold"]
        rows = entry["block_table_tensor"].shape[0] if decode else 1
        ids, places = input_ids.view(rows, -1), positions.view(rows, -1)
        own = 0 if decode else self.own_tokens(ids.shape[1])
        self.call.start(attn_metadata, decode, places, rank, own)
        set_decoding(decode)  # rules may have a form for decode
        hidden = self.last_hidden(ids, places)
        hidden = self.ranks.all_gather(hidden, 1) if own else hidden
        hidden = hidden.flatten(0, 1)[sampling_positions]
        set_decoding(False)
        self.call.end()
        logits = self.lm_head(hidden, rank)
        return self.sampling(self.lm_head, logits, sampling_params, logit_mask, rank)

    def own_tokens(self, tokens: int) -> int:
        """Tokens of each rank in a sequence-parallel prefill; 0 if every rank has all."""
        if not self.sequence_parallel:
            return 0
        ranks = self.ranks.size
        if tokens <= ranks or tokens % ranks:
            raise refuse(
                f"{tokens} tokens in prefill cannot be shared by {ranks} ranks (sequence parallel)",
                "num_batched_tokens_buckets",
            )
        return tokens // ranks

    def last_hidden(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """What the base model gives for ids and positions [B, S]: [B, S, H]."""
        out = self.model(input_ids=ids, position_ids=places, use_cache=False)
        hidden: torch.Tensor = out.last_hidden_state
        return hidden

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Only for vLLM's check of what kind of model this is; the runner does not call it."""
        embedded: torch.Tensor = self.token_embedding()(input_ids)
        return embedded

    def token_embedding(self) -> Any:
        """The module that looks tokens up."""
        base: Any = self.model
        return base.get_input_embeddings()

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Only for vLLM's check of what kind of model this is; the runner does not call it."""
        logits: torch.Tensor = self.lm_head(hidden_states, None)
        return logits
