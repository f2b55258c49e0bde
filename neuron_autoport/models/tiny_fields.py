"""Names of configuration fields that are sizes, by what they size.

Field names are facts of transformers' configuration classes; many are shared by dozens of model
types. What is in no table here keeps its value in a tiny configuration.
"""

from __future__ import annotations

HIDDEN = ("hidden_size", "d_model", "n_embd")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "num_query_groups")
HEAD_DIMS = ("head_dim", "attention_head_dim", "dim_head", "kv_channels", "attention_head_size")
# Widths that stay in proportion to the hidden size.
WITH_HIDDEN = (
    "attention_hidden_size", "dim_model_base", "embedding_dim", "encoder_cross_output_size",
    "hidden_size_global", "lru_width", "mamba_d_ssm", "word_embed_proj_dim",
)  # fmt: skip
INTERMEDIATE = (
    "dense_intermediate_size", "dff", "dim_ff", "feed_forward_size", "ffn_dim",
    "ffn_hidden_size", "intermediate_size", "intermediate_size_mlp", "n_inner",
    "prefix_dense_intermediate_size",
)  # fmt: skip
EXPERT_INTERMEDIATE = (
    "expert_ffn_hidden_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
    "shared_expert_intermediate_size", "shared_intermediate_size",
)  # fmt: skip
EXPERTS = ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts")
TOP_K = (
    "moe_k", "moe_top_k", "moe_topk", "num_experts_per_tok", "num_experts_per_token",
    "top_k_experts",
)  # fmt: skip
GROUPS = ("n_group", "num_expert_group")
WINDOWS = (
    "attention_chunk_size", "attention_window_size", "floor_scale", "keep_window_size",
    "log_scaling_n_floor", "sliding_window", "sliding_window_size", "window_size",
)  # fmt: skip
POSITIONS = (
    "context_length", "max_position_embeddings", "max_seq_len", "model_max_length", "n_ctx",
    "n_positions",
)  # fmt: skip
VOCABULARIES = ("encoder_hash_byte_group_vocab", "vocab_size", "vocab_size_per_layer_input")
RANKS = (
    "adapter_rank", "gated_norm_rank", "hc_lowrank", "kv_lora_rank", "laurel_rank",
    "o_lora_rank", "router_hidden_size",
)  # fmt: skip
# Anything else that is a size, with the most it may be.
AT_MOST = {
    "block_multiple_of": 16, "block_size": 8, "chunk_size": 8,
    "compress_rates": 5, "d_rel": 8,
    "ffn_round_up_to_multiple_of": 16, "heads_per_ngram": 2, "hidden_size_per_layer_input": 16,
    "index_block_size": 4, "index_head_dim": 16, "index_n_heads": 16, "index_topk": 4,
    "index_topk_blocks": 2, "indexer_budget": 8, "indexer_head_dim": 16, "indexer_n_heads": 16,
    "linear_head_dim": 16, "linear_key_head_dim": 16, "linear_num_heads": 2,
    "linear_num_key_heads": 2, "local_attention": 8, "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 4, "make_ngram_vocab_size_divisible_by": 8, "mamba_chunk_size": 8,
    "mamba_d_state": 8, "mamba_dt_rank": 4, "mamba_n_groups": 2, "mamba_ngroups": 2, "n_groups":
    2, "n_shared_experts": 2, "ngram_vocab_size_base": 64, "num_shared_experts": 2, "o_groups":
    2, "ple_embed_dim": 16, "position_bias_max_distance": 128, "position_bias_num_buckets": 32,
    "prompt_length": 4, "prompt_types": 8, "q_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "rel_extent": 16, "segment_types": 8, "split_ngram_parts": 4,
    "ssm_state_size": 8, "state_size": 8, "time_step_rank": 4, "zero_expert_num": 4,
}  # fmt: skip
# (value side, key side) of linear attention: their ratio is kept.
LINEAR_PAIRS = (
    ("linear_num_value_heads", "linear_num_key_heads"),
    ("linear_value_head_dim", "linear_key_head_dim"),
)
# (number of heads, width of a head) of state space layers.
STATE_SPACE_HEADS = (
    ("mamba_n_heads", "mamba_d_head"),
    ("mamba_num_heads", "mamba_head_dim"),
    ("n_mamba_heads", "mamba_headdim"),
    ("num_heads", "head_dim"),
)
