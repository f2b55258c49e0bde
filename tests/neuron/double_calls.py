"""Correct calls of the plugin's functions, each to be made wrong in one place by a test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def data(*shape: int) -> Tensor:
    """Data that is the same every time."""
    return torch.linspace(-1, 1, int(torch.tensor(shape).prod())).view(shape)


def enum(owner: str, member: str) -> Any:
    """A member of one of the plugin's enums."""
    import nkilib.core.utils.common_types as types

    return getattr(types, owner)[member]


def qkv_proj() -> dict[str, Any]:
    """Four query heads, two KV heads of 32 on a hidden size of 256."""
    half = data(1, 8, 16)
    return {
        "hidden": data(1, 8, 256),
        "qkv_weights": data(256, 256),
        "norm_weights": data(1, 256),
        "norm_type": enum("NormType", "RMS_NORM"),
        "bias": data(1, 256),
        "d_head": 32,
        "cos_cache": torch.cat([half, half], -1),
        "sin_cache": torch.cat([half, half], -1),
        "num_q_heads": 4,
        "num_kv_heads": 2,
    }


def qkv_write() -> dict[str, Any]:
    """The same with the cache write, and without what that drops."""
    given = qkv_proj()
    del given["norm_weights"], given["norm_type"]
    return given | {
        "use_block_kv": True,
        "k_cache": data(4, 2, 16, 32),
        "v_cache": data(4, 2, 16, 32),
        "block_size": 16,
        "slot_mapping": torch.arange(8)[None],
    }


def o_proj() -> dict[str, Any]:
    """Four heads of 32 to 128."""
    return {"active": data(1, 4, 32, 8), "weight": data(128, 128), "bias": data(1, 128)}


def mlp() -> dict[str, Any]:
    """256 to 512 and back, with a norm."""
    return {
        "hidden": data(8, 256),
        "gate_w": data(256, 512),
        "up_w": data(256, 512),
        "down_w": data(512, 256),
        "ln_w": data(1, 256),
        "norm_type": enum("NormType", "RMS_NORM"),
    }


def flash_attention() -> dict[str, Any]:
    """Four query heads over two KV heads, all transposed as the reference models pass them."""
    return {
        "q": data(4, 32, 8),
        "k": data(2, 32, 8),
        "v": data(2, 8, 32),
        "tp_q": False,
        "tp_out": True,
    }


def segmented_attention() -> dict[str, Any]:
    """A first chunk of 512 tokens."""
    return {
        "q": data(4, 512, 32),
        "k_cache": data(20, 2, 32, 32),
        "v_cache": data(20, 2, 32, 32),
        "block_tables": torch.arange(1, 17, dtype=torch.int32)[None],
        "prior_tokens": torch.zeros(4, 1, dtype=torch.int32),
        "block_size": 32,
        "kv_segment_size": 512,
    }


def attention_decode() -> dict[str, Any]:
    """Three requests, four query heads over one KV head of 32, positions instead of a mask."""
    return {
        "X": data(3, 1, 256),
        "W_qkv": data(256, 6 * 32),
        "cos": data(16, 3, 1),
        "sin": data(16, 3, 1),
        "active_blocks_table": torch.arange(24, dtype=torch.int32).view(3, 8),
        "K_cache": data(24, 1, 32, 32),
        "V_cache": data(24, 1, 32, 32),
        "pos_ids": torch.tensor([[1.0], [40.0], [0.0]]),
        "update_cache": True,
        "kv_cache_update_idx": torch.tensor([[1], [300], [512]], dtype=torch.int32),
        "W_out": data(128, 256),
    }


def gen_attention_decode_mask() -> dict[str, Any]:
    """A mask for the call above."""
    return {
        "pos_ids": torch.tensor([[1.0, 40.0, 0.0]]),
        "bs": 3,
        "q_head": 4,
        "s_active": 1,
        "s_prior": 256,
        "block_len": 32,
    }


def router() -> dict[str, Any]:
    """Two of four experts."""
    return {
        "hidden_states": data(8, 256),
        "router_weights": data(256, 4),
        "top_k": 2,
        "gamma": data(256),
        "router_bias": data(4),
    }


def moe_block_tkg() -> dict[str, Any]:
    """Two of four experts, weighted."""
    return {
        "inp": data(3, 1, 256),
        "gamma": data(1, 256),
        "router_weights": data(256, 4),
        "expert_gate_up_weights": data(4, 256, 2, 128),
        "expert_down_weights": data(4, 128, 256),
        "top_k": 2,
        "router_bias": data(1, 4),
        "expert_affinities_scaling_mode": enum("ExpertAffinityScaleMode", "POST_SCALE"),
    }


def embedding() -> dict[str, Any]:
    """Three ids."""
    return {"input": torch.tensor([0, 3, 2], dtype=torch.int32), "weight": data(4, 8)}


def sample() -> dict[str, Any]:
    """Two rows."""
    return {"logits": data(2, 16), "temperature": torch.tensor([0.0, 1.0])}
