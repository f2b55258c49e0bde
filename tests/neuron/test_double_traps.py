"""Documented traps are reproduced and noted; kernel limits are told per call."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from tests.neuron import double_calls as calls
from tests.neuron.double import ContractError, State
from tests.neuron.double_calls import data
from tests.neuron.test_double_attention import NF
from tests.neuron.test_double_strict import call


def traps(double: State) -> str:
    """All traps noted so far."""
    return " ".join(double.log.traps)


def test_slot_minus_one_in_qkv(double: State) -> None:
    """The torch formula: last block, last offset. The kernel says nothing: refused."""
    given = calls.qkv_write()
    given["slot_mapping"] = torch.tensor([[0, 1, 2, -1, 4, 5, 6, 7]])
    before = given["k_cache"].clone()
    NF().qkv_proj(**given)
    changed = (given["k_cache"] != before).any(-1).any(1).nonzero().tolist()
    assert [3, 15] in changed and [0, 3] not in changed
    assert "written to the last slot" in traps(double)
    double.semantics = "kernel"
    with pytest.raises(ContractError, match="no skip here"):
        NF().qkv_proj(**given)


@pytest.mark.parametrize("slot", [-1, 0xFFFFFFFF, 24 * 32])
def test_slot_minus_one_in_decode(double: State, slot: int) -> None:
    """The torch formula writes the very last slot; the kernel skips the write."""
    slots = torch.tensor([[1], [slot], [512]], dtype=torch.int64)
    for semantics, last_written in (("torch", True), ("kernel", False)):
        double.semantics = cast(Any, semantics)
        given = calls.attention_decode() | {"kv_cache_update_idx": slots}
        before = given["K_cache"].clone()
        NF().attention_decode(**given)
        changed = (given["K_cache"] != before).any(-1).any(1).nonzero().tolist()
        assert ([23, 31] in changed) is last_written
        assert [0, 1] in changed and [16, 0] in changed
    assert double.log.traps.total() == 2, "K and V, torch semantics only"


def test_the_cache_write_drops_the_rest(double: State) -> None:
    """Norm, residuals and QK-norm are dropped by the torch formula, not by the kernel."""
    plain = call("qkv_write")[0]
    given = calls.qkv_write() | {
        "norm_weights": data(1, 256),
        "norm_type": calls.enum("NormType", "RMS_NORM"),
        "mlp_prev": data(1, 8, 256),
        "attn_prev": data(1, 8, 256),
    }
    assert torch.equal(NF().qkv_proj(**given)[0], plain)
    assert "drops attn_prev, mlp_prev, norm_type, norm_weights" in traps(double)
    double.semantics = "kernel"
    assert not torch.equal(NF().qkv_proj(**given)[0], plain)


def test_one_residual_is_ignored(double: State) -> None:
    plain = call("qkv_proj")
    assert torch.equal(call("qkv_proj", mlp_prev=data(1, 8, 256)), plain)
    assert "one residual without the other is ignored" in traps(double)
    assert double.log.calls[1].verdict == "torch: one residual without the other"


def test_cache_arguments_without_the_write(double: State) -> None:
    given = calls.qkv_write() | {"use_block_kv": False}
    before = given["k_cache"].clone()
    NF().qkv_proj(**given)
    assert torch.equal(given["k_cache"], before)
    assert "cache arguments without use_block_kv write nothing" in traps(double)


def test_the_mlp_ignores_clamps(double: State) -> None:
    assert torch.equal(call("mlp", up_clamp_upper_limit=0.01), call("mlp"))
    assert "ignores up_clamp_upper_limit" in traps(double)


def test_a_table_of_minus_one(double: State) -> None:
    """The torch formula reads block 0 and relies on the mask; the kernel leaves the block out."""
    table = torch.tensor([[-1] * 8, [1] * 8, [2] * 8], dtype=torch.int32)
    even = {"softmax_scale": 1e-9}
    rows = call("attention_decode", active_blocks_table=table, **even)
    zeros = call("attention_decode", active_blocks_table=table.clamp(min=0), **even)
    assert torch.equal(rows, zeros)
    double.semantics = "kernel"
    alone = call("attention_decode", active_blocks_table=table, **even)
    assert not torch.equal(alone[0], rows[0]) and torch.equal(alone[1:], rows[1:])


def test_rows_that_see_nothing(double: State) -> None:
    """A uniform average in flash_attention, zeros in segmented_attention."""
    bounds = {"bound_min": torch.zeros(4, 8, 1), "bound_max": torch.zeros(4, 8, 1)}
    got = call("flash_attention", **bounds)
    mean = data(2, 8, 32).mean(1).repeat_interleave(2, 0)[:, :, None].expand(-1, -1, 8)
    torch.testing.assert_close(got, mean, rtol=1e-5, atol=1e-5)


def test_contexts_of_384(double: State) -> None:
    call("gen_attention_decode_mask", s_prior=384)
    assert "the layout is no permutation" in traps(double)


def test_other_traps_are_noted(double: State) -> None:
    call("flash_attention", sliding_window=2, causal_mask=False)
    mode = calls.enum("ExpertAffinityScaleMode", "NO_SCALE")
    call("moe_block_tkg", expert_affinities_scaling_mode=mode)
    call("attention_decode", transposed_out=True)
    for text in ("only with causal_mask", "weighs every chosen", "ignores transposed_out"):
        assert text in traps(double)


LIMITS: list[tuple[str, dict[str, Any], str]] = [
    ("qkv_proj", {}, "kernel"),
    ("qkv_write", {}, "kernel"),
    ("o_proj", {}, "kernel"),
    ("mlp", {}, "kernel"),
    ("flash_attention", {}, "kernel"),
    ("segmented_attention", {}, "kernel"),
    ("attention_decode", {}, "kernel"),
    ("gen_attention_decode_mask", {}, "kernel"),
    ("moe_block_tkg", {}, "kernel"),
    ("router", {}, "torch: the router kernel is switched off in this release"),
    ("embedding", {}, "torch: never a kernel"),
    (
        "qkv_proj",
        {"hidden": data(1, 8, 128), "qkv_weights": data(128, 256), "norm_weights": data(1, 128)},
        "torch: F = 256 > H = 128",
    ),
    ("qkv_proj", {"qk_norm_pre_rope_q_beta": data(1, 32)}, "torch: QK-norm beta"),
    ("o_proj", {"weight": data(128, 127), "bias": None}, "torch: H = 127 is odd"),
    (
        "o_proj",
        {"active": data(1, 18, 32, 1), "weight": data(576, 128)},
        "torch: N = 18 > 17",
    ),
    (
        "flash_attention",
        {"q": data(513, 4, 2), "k": data(1, 4, 2), "v": data(1, 2, 4)},
        "torch: B = 513 > 512",
    ),
    (
        "mlp",
        {
            "hidden": data(129, 128),
            "gate_w": data(128, 4224),
            "up_w": data(128, 4224),
            "down_w": data(4224, 128),
            "ln_w": data(1, 128),
        },
        "torch: I = 4224 per rank is above 4096",
    ),
    (
        "mlp",
        {
            "hidden": data(8, 128),
            "gate_w": data(128, 64),
            "up_w": data(128, 64),
            "down_w": data(64, 128),
            "ln_w": data(1, 128),
        },
        "torch: T <= 128 and H = 128 % 256 != 0",
    ),
    (
        "attention_decode",
        {
            "W_qkv": data(256, 8 * 32),
            "K_cache": data(24, 2, 32, 32),
            "V_cache": data(24, 2, 32, 32),
        },
        "torch: 2 KV heads per rank with a 2D block table",
    ),
    (
        "moe_block_tkg",
        {"expert_gate_up_weights": data(4, 256, 2, 64), "expert_down_weights": data(4, 64, 256)},
        "torch: I = 64 is no multiple of 128",
    ),
]


@pytest.mark.parametrize(("name", "changes", "verdict"), LIMITS)
def test_limits(double: State, name: str, changes: dict[str, Any], verdict: str) -> None:
    """The kernel takes it, or the torch formula and why."""
    call(name, **changes)
    assert [made.verdict for made in double.log.calls] == [verdict]


def test_kernels_are_off_in_cpu_mode(double: State) -> None:
    """And an NKI kernel that has no stand-in is refused, not invented."""
    from libtorch_neuronx_lite.nki.nki_hop import wrap_nki
    from vllm_neuron.utils.neuron_utils import can_run_kernel

    assert can_run_kernel(data(1)) is False
    with pytest.raises(ContractError, match="no stand-in for this kernel"):
        wrap_nki(calls.mlp)[2](x=data(1))
    with pytest.raises(ContractError, match="logical core count"):
        wrap_nki(calls.mlp)[3]
