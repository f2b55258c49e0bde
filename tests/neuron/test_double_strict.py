"""The double refuses what the contract forbids: one wrong place in a correct call at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.neuron import double_calls as calls
from tests.neuron.double import ContractError, State
from tests.neuron.double_calls import data
from tests.neuron.test_double_attention import NF

CORRECT = (
    "qkv_proj",
    "o_proj",
    "mlp",
    "flash_attention",
    "segmented_attention",
    "attention_decode",
    "gen_attention_decode_mask",
    "router",
    "moe_block_tkg",
    "embedding",
    "sample",
)


def call(name: str, **changes: Any) -> Any:
    """A correct call with some arguments replaced; None takes one away."""
    given = getattr(calls, name)() | changes
    function = "qkv_proj" if name == "qkv_write" else name
    return getattr(NF(), function)(**{k: v for k, v in given.items() if v is not None})


@pytest.mark.parametrize("name", CORRECT)
def test_the_correct_calls_are_accepted(double: State, name: str) -> None:
    call(name)
    [made] = double.log.calls
    assert made.function == name
    assert not double.log.traps


def test_the_correct_write_is_accepted(double: State) -> None:
    call("qkv_write")
    assert not double.log.traps


HALF = torch.float16
SHAPES: list[tuple[str, str, Tensor | int | None, str]] = [
    ("qkv_proj", "hidden", data(8, 256), "hidden must be"),
    ("qkv_proj", "qkv_weights", data(128, 256), r"qkv_weights must be \[256, \*\]"),
    ("qkv_proj", "d_head", 16, r"8 heads of 16 are not 256 columns"),
    ("qkv_proj", "norm_weights", data(256), r"norm_weights must be \[1, 256\]"),
    ("qkv_proj", "bias", data(256), r"bias must be \[1, 256\]"),
    ("qkv_proj", "cos_cache", data(1, 8, 16), r"cos_cache must be \[1, 8, 32\]"),
    ("qkv_proj", "sin_cache", None, "come together"),
    ("qkv_proj", "num_q_heads", None, "RoPE without head counts"),
    ("qkv_proj", "norm_weights", None, "RMS_NORM needs norm_weights"),
    ("qkv_write", "k_cache", data(4, 16, 2, 32), "v_cache must be"),
    ("qkv_write", "slot_mapping", None, "use_block_kv needs slot_mapping"),
    ("qkv_write", "slot_mapping", data(1, 8), "slot_mapping is torch.float32"),
    ("o_proj", "weight", data(64, 128), r"weight must be \[128, \*\]"),
    ("o_proj", "active", data(1, 32, 8), r"weight must be \[8, \*\]"),
    ("o_proj", "bias", data(128), r"bias must be \[1, 128\]"),
    ("mlp", "hidden", data(1, 8, 256), r"hidden must be \[\*, \*\]"),
    ("mlp", "down_w", data(256, 512), r"down_w must be \[512, 256\]"),
    ("mlp", "gate_w", data(512, 256), r"gate_w must be \[256, 512\]"),
    ("mlp", "ln_w", data(256), r"ln_w must be \[1, 256\]"),
    ("mlp", "ln_w", None, "RMS_NORM needs ln_w"),
    ("flash_attention", "k", data(2, 8, 32), r"k must be \[2, 32, 8\]"),
    ("flash_attention", "q", data(3, 32, 8), "3 query rows are no multiple of 2"),
    ("flash_attention", "sink", data(4), r"sink must be \[4, 1\]"),
    ("segmented_attention", "k_cache", data(20, 32, 2, 32), "v_cache must be"),
    ("segmented_attention", "block_tables", torch.arange(16), "block_tables must be"),
    ("segmented_attention", "prior_tokens", torch.zeros(1, 1).int(), "prior_tokens must be"),
    ("segmented_attention", "kv_segment_size", 256, "kv_segment_size must be in"),
    ("segmented_attention", "q", data(4, 128, 32), "Sq = 128 is not kv_segment_size"),
    ("segmented_attention", "sliding_window", 40, "window 40 % block_size 32"),
    ("segmented_attention", "prior_tokens", torch.full((4, 1), 40), "no multiple of the block"),
    ("attention_decode", "X", data(3, 256), "X must be"),
    ("attention_decode", "cos", data(32, 3, 1), r"cos must be \[16, 3, 1\]"),
    ("attention_decode", "cos", data(3, 1, 16), r"cos must be \[16, 3, 1\]"),
    ("attention_decode", "W_out", data(256, 128), r"W_out must be \[128, \*\]"),
    ("attention_decode", "active_blocks_table", torch.zeros(3, 8).long(), "torch.int64, not one"),
    ("attention_decode", "active_blocks_table", None, "no block table"),
    ("attention_decode", "pos_ids", None, "neither pos_ids nor a mask"),
    ("attention_decode", "pos_ids", torch.zeros(3, 1).int(), "pos_ids is torch.int32"),
    ("attention_decode", "pos_ids", torch.full((3, 1), -1.0), "pos_ids below 0"),
    ("attention_decode", "pos_ids", torch.full((3, 1), 256.0), "above the context"),
    ("attention_decode", "kv_cache_update_idx", torch.zeros(3).int(), "must be \\[3, 1\\]"),
    ("attention_decode", "V_cache", None, "V_cache is required"),
    ("attention_decode", "rmsnorm_X_gamma", data(1, 256), "without rmsnorm_X_enabled"),
    ("gen_attention_decode_mask", "s_prior", 320, "no multiple of 128"),
    ("gen_attention_decode_mask", "block_len", 0, "block_len is needed"),
    ("gen_attention_decode_mask", "pos_ids", torch.zeros(3, 1), r"pos_ids must be \[1, 3\]"),
    ("gen_attention_decode_mask", "pos_ids", torch.zeros(1, 3).int(), "pos_ids is torch.int32"),
    ("router", "gamma", data(1, 256), r"gamma must be \[256\]"),
    ("router", "router_bias", data(1, 4), r"router_bias must be \[4\]"),
    ("router", "router_weights", data(4, 256), "router_weights must be"),
    ("router", "top_k", 5, "top_k = 5 of 4"),
    ("moe_block_tkg", "gamma", data(256), r"gamma must be \[1, 256\]"),
    ("moe_block_tkg", "router_bias", data(4), r"router_bias must be \[1, 4\]"),
    ("moe_block_tkg", "expert_gate_up_weights", data(4, 256, 256), "must be"),
    ("moe_block_tkg", "expert_gate_up_weights", data(2, 256, 2, 128), "must be"),
    ("moe_block_tkg", "residual", data(3, 256), r"NotImplementedError: \['residual'\]"),
    ("embedding", "input", torch.zeros(1, 3).int(), "ValueError: input must be"),
    ("embedding", "input", torch.tensor([4]), "outside the table"),
    ("sample", "temperature", data(3), r"temperature must be \[2\]"),
]


@pytest.mark.parametrize(("name", "argument", "value", "text"), SHAPES)
def test_shapes_layouts_and_missing_arguments(
    double: State, name: str, argument: str, value: Any, text: str
) -> None:
    with pytest.raises(ContractError, match=text):
        call(name, **{argument: value})
    assert double.log.calls == []


DTYPES = [
    ("qkv_proj", "qkv_weights"),
    ("qkv_proj", "bias"),
    ("o_proj", "weight"),
    ("mlp", "down_w"),
    ("flash_attention", "v"),
    ("segmented_attention", "q"),
    ("attention_decode", "W_qkv"),
    ("attention_decode", "K_cache"),
    ("moe_block_tkg", "expert_down_weights"),
]


@pytest.mark.parametrize(("name", "argument"), DTYPES)
def test_a_dtype_of_its_own(double: State, name: str, argument: str) -> None:
    """One tensor in another dtype than the others."""
    value = getattr(calls, name)()[argument]
    with pytest.raises(ContractError, match="is torch"):
        call(name, **{argument: value.to(HALF)})


def test_everything_in_another_dtype_than_the_model(double: State) -> None:
    """Kernels take the model's dtype: a call in float32 inside a bfloat16 model is refused."""
    double.model_dtype = torch.bfloat16
    with pytest.raises(ContractError, match=r"the model's dtype is torch\.bfloat16"):
        call("mlp")


def test_halves_of_cos_differ(double: State) -> None:
    with pytest.raises(ContractError, match="cos_cache: both halves are equal"):
        call("qkv_proj", cos_cache=data(1, 8, 32))


def test_enums_and_callables(double: State) -> None:
    """Enum members only, by the plugin's own classes."""
    from neuron_autoport import nf

    with pytest.raises(ContractError, match="no member of the plugin's own enum"):
        call("qkv_proj", norm_type=nf.NormType.RMS_NORM)
    with pytest.raises(ContractError, match="no argument of this kind"):
        call("router", activation=torch.sigmoid)
    with pytest.raises(ContractError, match="both q and k must be RMS_NORM"):
        call("qkv_proj", qk_norm_pre_rope_q_norm=calls.enum("NormType", "RMS_NORM"))


def test_checks_run_while_a_graph_is_made(double: State) -> None:
    """Inside torch.compile the same error, before anything runs."""
    given = calls.mlp() | {"ln_w": data(256)}

    @torch.compile(fullgraph=True, backend="eager", dynamic=False)
    def run(x: Tensor) -> Any:
        return NF().mlp(**given | {"hidden": x})

    with pytest.raises(Exception, match=r"ln_w must be \[1, 256\]"):
        run(data(8, 256))
    assert double.log.calls == []


def test_shapes_on_meta_tensors(double: State) -> None:
    """Graphs are first captured on meta tensors: shapes and dtypes without data."""
    given = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in calls.mlp().items()}
    y = NF().mlp(**given)
    assert y.device.type == "meta" and tuple(y.shape) == (8, 256)
