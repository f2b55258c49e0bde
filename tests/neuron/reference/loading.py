"""Weights of the reference model: which checkpoint tensor goes where, and cut how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.neuron.reference.llama import ReferenceLlama


def check_sizes(config: Any, ranks: int) -> None:
    """Everything that is divided by the number of ranks can be.

    Raises:
        ValueError: it cannot.
    """
    sizes = {
        "attention heads": config.num_attention_heads,
        "inner size": config.intermediate_size,
        "vocabulary": config.vocab_size,
    }
    for what, size in sizes.items():
        if size % ranks:
            raise ValueError(f"{size} {what} cannot be divided by {ranks} ranks")
    heads = config.num_key_value_heads
    if heads % ranks and ranks % heads:
        raise ValueError(f"{heads} KV heads cannot be spread over {ranks} ranks")


def _bias_loader(q: int, kv: int, replicas: int) -> Any:
    """Biases q, k, v of one rank as one vector."""
    from vllm_neuron.utils.weight_loader import SafetensorsWeightLoader

    def transform(slices: list[Any], rank: int) -> Tensor:
        at = [(rank, q), (rank // replicas, kv), (rank // replicas, kv)]
        pairs = zip(slices, at, strict=True)
        return torch.cat([each[i * size : (i + 1) * size] for each, (i, size) in pairs])

    return SafetensorsWeightLoader(transform)


def _attention(attention: Any, prefix: str, ranks: int, kv_total: int) -> dict[str, Any]:
    """Loaders and mapping of one attention module."""
    from vllm_neuron.utils.weight_loader import (
        fused_qkv_weight_loader,
        scaled_bias_loader,
        set_weight_loader,
        sharding_weight_loader,
    )

    q, kv = attention.q_heads * attention.dim, attention.kv_heads * attention.dim
    replicas = max(1, ranks // kv_total)
    set_weight_loader(attention.qkv, fused_qkv_weight_loader(q, kv, 1, ranks, True, replicas))
    set_weight_loader(attention.o, sharding_weight_loader(0, q, ranks, True))
    names = [f"{prefix}.{x}_proj" for x in "qkv"]
    mapping: dict[str, Any] = {
        "qkv": [f"{name}.weight" for name in names],
        "o": f"{prefix}.o_proj.weight",
    }
    if attention.qkv_bias is not None:
        set_weight_loader(attention.qkv_bias, _bias_loader(q, kv, replicas))
        set_weight_loader(attention.o_bias, scaled_bias_loader(ranks))
        mapping["qkv_bias"] = [f"{name}.bias" for name in names]
        mapping["o_bias"] = f"{prefix}.o_proj.bias"
    return mapping


def mappings(model: ReferenceLlama, tied: bool) -> dict[str, Any]:
    """Parameter -> checkpoint tensors; hangs the loaders on the parameters."""
    from vllm_neuron.utils.weight_loader import set_weight_loader, sharding_weight_loader

    config, ranks = model.config, model.group.world_size
    inner = config.intermediate_size // ranks
    embed = "model.embed_tokens.weight"
    found: dict[str, Any] = {"embed.weight": embed, "norm": "model.norm.weight"}
    found["lm_head.weight"] = embed if tied else "lm_head.weight"
    rows = config.vocab_size // ranks
    set_weight_loader(model.lm_head.weight, sharding_weight_loader(0, rows, ranks))
    for index, layer in enumerate(model.layers):
        each: Any = layer
        theirs, ours = f"model.layers.{index}", f"layers.{index}"
        attention = f"{theirs}.self_attn"
        for name, source in _attention(
            each.self_attn, attention, ranks, config.num_key_value_heads
        ).items():
            found[f"{ours}.self_attn.{name}"] = source
        found[f"{ours}.input_norm"] = f"{theirs}.input_layernorm.weight"
        found[f"{ours}.post_norm"] = f"{theirs}.post_attention_layernorm.weight"
        for name in ("gate", "up", "down"):
            found[f"{ours}.{name}"] = f"{theirs}.mlp.{name}_proj.weight"
            dim = 0 if name == "down" else 1
            set_weight_loader(getattr(each, name), sharding_weight_loader(dim, inner, ranks, True))
    return found


def load(model: ReferenceLlama, path: str, device: torch.device, cache_dir: str | None) -> None:
    """Read everything; nothing may be missing."""
    from vllm_neuron.utils.checkpoints import SafetensorsCheckpoint

    checkpoint = SafetensorsCheckpoint(path, cache_dir)
    tied = "lm_head.weight" not in checkpoint.get_tensor_names()
    result = checkpoint.load_sharded_pipelined(
        model.group.rank_in_group, model.group.world_size, model, mappings(model, tied), device
    )
    model.load_state_dict(result.state_dict, strict=False, assign=True)
