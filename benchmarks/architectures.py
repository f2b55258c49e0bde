"""Every decoder-only model type of transformers 5.19, and a configuration of each that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TYPES = (Path(__file__).parent / "decoder_only_types.txt").read_text(encoding="utf-8").split()
# Types whose default configuration does not build or does not run, with the fields that mend it.
MENDED: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 4, "clip_qkv": 8.0}},
    # 1407 is no multiple of the 16 bytes that a grouped product asks of a row.
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen4_exp": {"text_config": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256,
        "indexer_budget": 2048, "indexer_compress_ratio": 4,
    }},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256,
        "indexer_budget": 2048, "indexer_compress_ratio": 4,
    },
    "reformer": {"is_decoder": True},
}  # fmt: skip


def default_config(model_type: str) -> PretrainedConfig:
    """The default configuration of a type, mended where it has to be."""
    config: PretrainedConfig = CONFIG_MAPPING[model_type](**MENDED.get(model_type, {}))
    return config
