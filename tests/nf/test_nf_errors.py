"""Every argument the torch reference cannot honour is refused by name: one table per function."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from neuron_autoport import nf as NF

Case = tuple[dict[str, Any], type[Exception], str]
RMS, LAYER = NF.NormType.RMS_NORM, NF.NormType.LAYER_NORM
SCALE = torch.ones(128, 1)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


MLP: dict[str, Any] = {
    "hidden": ones(3, 8),
    "gate_w": ones(8, 6),
    "up_w": ones(8, 6),
    "down_w": ones(6, 8),
}
MLP_CASES: list[Case] = [
    ({"hidden": ones(1, 3, 8)}, ValueError, "hidden .*x.flatten(0, -2)"),
    ({"hidden": ones(8)}, ValueError, "hidden"),
    ({"gate_w": ones(6, 8)}, ValueError, "gate_w .*transpose"),
    ({"up_w": ones(6, 8)}, ValueError, "up_w .*transpose"),
    ({"down_w": ones(8, 6)}, ValueError, "down_w .*transpose"),
    ({"gate_w": ones(8, 1)}, ValueError, "gate_w (8, 1) and up_w (8, 6)"),
    ({"gate_w": "w"}, TypeError, "gate_w .*linear"),
    ({"down_w": None}, TypeError, "down_w .*linear"),
    ({"gate_b": ones(6)}, ValueError, "gate_b .*view(1, -1)"),
    ({"up_b": ones(1, 1)}, ValueError, "up_b"),
    ({"down_b": ones(8)}, ValueError, "down_b"),
    ({"act_fn": "silu"}, TypeError, "act_fn .*GELU_Tanh_Approx"),
    ({"norm_type": "RMS_NORM"}, TypeError, "norm_type"),
    ({"norm_type": RMS}, ValueError, "ln_w .*RMS_NORM_SKIP_GAMMA"),
    ({"norm_type": RMS, "ln_w": ones(8)}, ValueError, "ln_w .*view(1, -1)"),
    ({"norm_type": NF.NormType.RMS_NORM_SKIP_GAMMA, "ln_w": ones(1, 8)}, ValueError, "ln_w"),
    ({"ln_w": ones(1, 8)}, ValueError, "ln_w .*NO_NORM"),
    ({"norm_type": RMS, "ln_w": ones(1, 8), "norm_b": ones(1, 8)}, ValueError, "norm_b"),
    ({"fused_add_tensor": ones(1, 8)}, ValueError, "fused_add_tensor"),
    ({"store_fused_add_result": True}, ValueError, "store_fused_add_result"),
    ({"skip_gate": True, "gate_b": ones(1, 6)}, ValueError, "gate_b"),
    (
        {"skip_gate": True, "up_clamp_upper_limit": 1.0},
        NotImplementedError,
        "up_clamp_upper_limit",
    ),
    (
        {"quantization_type": NF.QuantizationType.ROW},
        NotImplementedError,
        "quantization_type",
    ),
    ({"quantization_type": None}, TypeError, "quantization_type"),
    *[
        ({name: SCALE}, NotImplementedError, name)
        for name in (
            "gate_w_scale",
            "up_w_scale",
            "down_w_scale",
            "gate_up_in_scale",
            "down_in_scale",
        )
    ],
    ({"quant_clipping_bound": 1.0}, NotImplementedError, "quant_clipping_bound"),
    ({"output_dtype": torch.bfloat16}, NotImplementedError, "output_dtype"),
    ({"gate_up_w_layout": "interleaved"}, NotImplementedError, "gate_up_w_layout"),
]

O_PROJ: dict[str, Any] = {"active": ones(1, 2, 4, 3), "weight": ones(8, 5)}
O_PROJ_CASES: list[Case] = [
    ({"active": ones(3, 8)}, ValueError, "active .*unsqueeze(0)"),
    ({"weight": ones(5, 8)}, ValueError, "weight .*transpose"),
    ({"bias": ones(5)}, ValueError, "bias"),
    ({"quantization_type": NF.QuantizationType.MX}, NotImplementedError, "quantization_type"),
    ({"input_scales": SCALE}, NotImplementedError, "input_scales"),
    ({"weight_scales": SCALE}, NotImplementedError, "weight_scales"),
]

QKV: dict[str, Any] = {"hidden": ones(1, 2, 8), "qkv_weights": ones(8, 16)}
HEADS: dict[str, Any] = {"num_q_heads": 2, "num_kv_heads": 1}
ROPE: dict[str, Any] = {"cos_cache": ones(1, 2, 4), "sin_cache": ones(1, 2, 4)}
PRE: dict[str, Any] = {"qk_norm_pre_rope_q_norm": RMS, "qk_norm_pre_rope_k_norm": RMS}
POST: dict[str, Any] = {"qk_norm_post_rope_q_norm": RMS, "qk_norm_post_rope_k_norm": RMS}
CACHE: dict[str, Any] = {
    **HEADS,
    "d_head": 4,
    "k_cache": ones(3, 1, 2, 4),
    "v_cache": ones(3, 1, 2, 4),
    "use_block_kv": True,
    "block_size": 2,
    "slot_mapping": torch.tensor([0, 1]),
}
QKV_CASES: list[Case] = [
    ({"hidden": ones(2, 8)}, ValueError, "hidden .*unsqueeze(0)"),
    ({"qkv_weights": ones(16, 8)}, ValueError, "qkv_weights .*transpose"),
    ({"bias": ones(16)}, ValueError, "bias"),
    ({"mlp_prev": ones(1, 2, 8)}, ValueError, "attn_prev is None"),
    ({"attn_prev": ones(1, 2, 8)}, ValueError, "mlp_prev is None"),
    ({"mlp_prev": ones(1, 1, 8), "attn_prev": ones(1, 2, 8)}, ValueError, "mlp_prev"),
    ({"norm_weights": ones(1, 8)}, ValueError, "norm_weights .*NO_NORM"),
    ({"norm_type": RMS}, ValueError, "norm_weights"),
    ({"norm_type": RMS, "norm_weights": ones(8)}, ValueError, "norm_weights"),
    ({"norm_type": RMS, "norm_weights": ones(1, 8), "norm_b": ones(1, 8)}, ValueError, "norm_b"),
    ({"hidden_actual": 4}, ValueError, "hidden_actual .*NO_NORM"),
    ({"norm_type": LAYER, "hidden_actual": 4}, ValueError, "hidden_actual .*LAYER_NORM"),
    (
        {"norm_type": RMS, "norm_weights": ones(1, 8), "hidden_actual": 9},
        ValueError,
        "hidden_actual",
    ),
    ({"num_q_heads": 2}, ValueError, "num_kv_heads is None"),
    ({"num_kv_heads": 1}, ValueError, "num_q_heads is None"),
    ({"num_q_heads": 2, "num_kv_heads": 2}, ValueError, "16 columns"),
    ({**HEADS, "d_head": 8}, ValueError, "16 columns"),
    ({**ROPE}, ValueError, "num_q_heads"),
    ({**HEADS, "cos_cache": ones(1, 2, 4)}, ValueError, "sin_cache"),
    ({**HEADS, "sin_cache": ones(1, 2, 4)}, ValueError, "cos_cache"),
    ({**HEADS, **ROPE, "cos_cache": ones(1, 2, 2)}, ValueError, "cos_cache"),
    ({**HEADS, **ROPE, "sin_cache": ones(2, 2, 4)}, ValueError, "sin_cache .*expand"),
    ({"output_layout": NF.QKVOutputLayout.NBSd}, ValueError, "NBSd .*d_head"),
    ({"output_layout": NF.QKVOutputLayout.NBdS, "d_head": 5}, ValueError, "NBdS .*d_head"),
    ({"output_layout": "BSD"}, TypeError, "output_layout"),
    ({**PRE}, ValueError, "num_q_heads"),
    ({**POST}, ValueError, "num_q_heads"),
    ({**HEADS, "qk_norm_pre_rope_q_norm": RMS}, ValueError, "qk_norm_pre_rope_k_norm"),
    ({**HEADS, "qk_norm_post_rope_k_norm": RMS}, ValueError, "qk_norm_post_rope_q_norm"),
    ({**HEADS, **PRE, "qk_norm_pre_rope_q_norm": LAYER}, ValueError, "qk_norm_pre_rope_q_norm"),
    ({**HEADS, "qk_norm_pre_rope_q_gamma": ones(1, 4)}, ValueError, "qk_norm_pre_rope_q_gamma"),
    ({**HEADS, "qk_norm_post_rope_k_beta": ones(1, 4)}, ValueError, "qk_norm_post_rope_k_beta"),
    ({**HEADS, **POST, "qk_norm_post_rope_k_gamma": ones(4)}, ValueError, "post_rope_k_gamma"),
    (
        {**HEADS, **PRE, "qk_norm_pre_rope_gamma_fused_in_rope_caches": True},
        NotImplementedError,
        "qk_norm_pre_rope_gamma_fused_in_rope_caches",
    ),
    ({"quantization_type": NF.QuantizationType.MX}, NotImplementedError, "quantization_type"),
    (
        {"weight_layout": NF.QKVWeightLayout.MX_CONTIGUOUS},
        NotImplementedError,
        "weight_layout",
    ),
    ({"qkv_w_scale": SCALE}, NotImplementedError, "qkv_w_scale"),
    ({"qkv_in_scale": SCALE}, NotImplementedError, "qkv_in_scale"),
    ({"store_output_in_sbuf": True}, NotImplementedError, "store_output_in_sbuf"),
    *[
        ({**CACHE, "use_block_kv": False, **dict.fromkeys(others)}, ValueError, name)
        for name, others in {
            "k_cache": (),
            "v_cache": ("k_cache",),
            "block_size": ("k_cache", "v_cache"),
            "slot_mapping": ("k_cache", "v_cache", "block_size"),
        }.items()
    ],
    ({"k_scale": ones(1, 1)}, ValueError, "k_scale"),
    ({"fp8_max": 1.0}, ValueError, "fp8_max"),
    ({"kv_dtype": torch.bfloat16}, ValueError, "kv_dtype"),
    *[
        ({**CACHE, name: None}, ValueError, f"{name}.* is required")
        for name in (
            "k_cache",
            "v_cache",
            "block_size",
            "slot_mapping",
            "d_head",
            "num_q_heads",
            "num_kv_heads",
        )
    ],
    ({**CACHE, "norm_type": RMS, "norm_weights": ones(1, 8)}, NotImplementedError, "norm_type"),
    ({**CACHE, "norm_weights": ones(1, 8)}, ValueError, "norm_weights"),
    (
        {**CACHE, "mlp_prev": ones(1, 2, 8), "attn_prev": ones(1, 2, 8)},
        NotImplementedError,
        "mlp_prev",
    ),
    ({**CACHE, **PRE}, NotImplementedError, "qk_norm_pre_rope_q_norm"),
    ({**CACHE, **POST}, NotImplementedError, "qk_norm_post_rope_q_norm"),
    (
        {**CACHE, "output_layout": NF.QKVOutputLayout.NBSd},
        NotImplementedError,
        "output_layout",
    ),
    ({**CACHE, "transpose_k_cache": True}, NotImplementedError, "transpose_k_cache"),
    ({**CACHE, "fp8_packed": True}, NotImplementedError, "fp8_packed"),
    ({**CACHE, "k_cache": ones(3, 2, 4)}, NotImplementedError, "k_cache"),
    ({**CACHE, "v_cache": ones(3, 1, 1, 4, 2)}, NotImplementedError, "v_cache"),
    ({**CACHE, "k_cache": ones(3, 2, 1, 4)}, ValueError, "k_cache"),
    ({**CACHE, "block_size": 4}, ValueError, "k_cache"),
    ({**CACHE, "slot_mapping": torch.tensor([0])}, ValueError, "slot_mapping"),
    ({**CACHE, "kv_dtype": torch.bfloat16}, ValueError, "kv_dtype"),
    ({**CACHE, "k_scale": ones(1, 1)}, ValueError, "v_scale"),
    (
        {**CACHE, "k_scale": ones(1, 1), "v_scale": ones(1, 1), "fp8_max": 1.0},
        ValueError,
        "fp8_min",
    ),
    (
        {
            **CACHE,
            "k_scale": ones(128, 1),
            "v_scale": ones(1, 1),
            "fp8_max": 1.0,
            "fp8_min": -1.0,
        },
        ValueError,
        "k_scale",
    ),
]

ALL = [
    *[(NF.mlp, MLP, case) for case in MLP_CASES],
    *[(NF.o_proj, O_PROJ, case) for case in O_PROJ_CASES],
    *[(NF.qkv_proj, QKV, case) for case in QKV_CASES],
]


@pytest.mark.parametrize(("function", "base", "case"), ALL)
def test_refused(function: Any, base: dict[str, Any], case: Case) -> None:
    change, error, words = case
    pattern = ".*".join(re.escape(part) for part in words.split(".*"))
    with pytest.raises(error, match=pattern) as caught:
        function(**{**base, **change})
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"NF.{function.__name__}: ")


def test_a_refused_call_writes_no_cache() -> None:
    cache = {**CACHE, "k_cache": ones(3, 1, 2, 4), "v_cache": ones(3, 1, 2, 4)}
    with pytest.raises(ValueError, match="slot_mapping"):
        NF.qkv_proj(**QKV, **{**cache, "slot_mapping": torch.tensor([0, 1, 2])})
    assert torch.equal(cache["k_cache"], ones(3, 1, 2, 4))
    assert torch.equal(cache["v_cache"], ones(3, 1, 2, 4))


def test_bases_of_the_table_are_valid_calls() -> None:
    """So each refusal above is due to its change alone."""
    NF.mlp(**MLP)
    NF.o_proj(**O_PROJ)
    NF.qkv_proj(**QKV)
    NF.qkv_proj(**QKV, **HEADS, **ROPE, **PRE, **POST)
    NF.qkv_proj(**QKV, **CACHE)
