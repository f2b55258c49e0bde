"""The facts in the catalogue against the call contract, our kernels' own limits, and the documentation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from neuron_autoport.catalogue.entry import Entry, Need
from neuron_autoport.catalogue.load import catalogue, checked, data
from neuron_autoport.catalogue.sizes import SIZES
from neuron_autoport.kernels.limits import KERNELS


def entry(name: str) -> Entry:
    return {e.name: e for e in catalogue()}[name]


# The functions of the plugin's release line that the call contract describes, by module.
NF_FUNCTIONS = {
    "attention.qkv": ["qkv_proj"],
    "attention.o_proj": ["o_proj"],
    "attention.attention_cte": ["flash_attention"],
    "attention.attention_segmented_cte": ["segmented_attention", "segmented_attention_cp"],
    "attention.swa_fused": ["swa_fused_attention"],
    "attention.attention_decode": ["attention_decode"],
    "attention.attention_decode_mask": [
        "gen_attention_decode_mask", "maybe_transpose_mask_for_qk_swap",
    ],
    "mlp": ["mlp"],
    "rmsnorm_quant": ["rmsnorm_quant"],
    "embedding": ["embedding"],
    "sampling": ["sample"],
    "argmax": ["argmax"],
    "cumsum": ["cumsum"],
    "topk": ["topk", "batch_sharded_topk"],
    "argsort_unstable": ["argsort_unstable"],
    "moe.router": ["router"],
    "moe.moe_blockwise": ["build_blockwise_mapping"],
    "moe.moe_cte": ["moe_cte"],
    "moe.moe_tkg": ["moe_tkg"],
    "moe.moe_block_tkg": ["moe_block_tkg"],
    "moe.rmsnorm_router_topk_tkg": ["rmsnorm_router_topk_tkg"],
    "moe.topk_reduce": ["topk_reduce"],
    "moe.pack_tokens": ["pack_tokens"],
    "expert_parallel": [
        "calculate_local_expert_indices", "validate_expert_parallelism_config",
        "get_local_expert_affinities",
    ],
    "prompt_embeds": ["merge_prompt_embeds"],
    "collectives.all_to_all": ["all_to_all"],
    "process_groups": ["get_group_slice_indices", "create_row_col_groups"],
}  # fmt: skip


def test_every_function_of_nf_is_there() -> None:
    want = {
        f"NF.{name}": f"vllm_neuron.functional.{module}"
        for module, names in NF_FUNCTIONS.items()
        for name in names
    }
    assert {e.name: e.module for e in catalogue() if e.kind == "nf"} == want


# Limits of the call contract, copied by hand: name, sizes that just hold, sizes that just do not.
LIMITS: list[tuple[str, str | None, dict[str, Any], dict[str, Any]]] = [
    ("NF.qkv_proj", None, {"hidden": 24576}, {"hidden": 24704}),
    ("NF.qkv_proj", None, {"qkv_width": 4096, "hidden": 8192}, {"qkv_width": 4097, "hidden": 8192}),
    ("NF.o_proj", None, {"heads": 17}, {"heads": 18}),
    ("NF.o_proj", None, {"hidden": 20704}, {"hidden": 20706}),
    ("NF.flash_attention", None, {"batch": 64, "heads": 8}, {"batch": 65, "heads": 8}),
    ("NF.attention_decode", None, {"new_tokens": 8}, {"new_tokens": 9}),
    ("NF.attention_decode", None, {"head_dim": 128}, {"head_dim": 130}),
    ("NF.mlp", "decode", {"hidden": 2304}, {"hidden": 2432}),
    ("NF.mlp", "prefill", {"hidden": 2432, "intermediate": 4096}, {"hidden": 2432, "intermediate": 4097}),
    ("NF.mlp", "prefill", {"hidden": 7168, "intermediate": 8192}, {"hidden": 7040, "intermediate": 8192}),
    ("NF.gen_attention_decode_mask", None, {"context": 384}, {"context": 400}),
    ("NF.moe_block_tkg", None, {"hidden": 2816}, {"hidden": 2880}),
    ("NF.rmsnorm_quant", None, {"width": 16384}, {"width": 16385}),
    ("nkilib.rope_hf", None, {"seq": 512, "cores": 2}, {"seq": 384, "cores": 2}),
    ("nkilib.RoPE", None, {"head_dim": 64}, {"head_dim": 96}),
    ("nkilib.attention_cte", None, {"head_dim": 128}, {"head_dim": 256}),
    ("nkilib.router_topk", None, {"top_k": 8, "experts": 512}, {"top_k": 9, "experts": 512}),
    ("nkilib.moe_cte", None, {"hidden": 8192}, {"hidden": 8704}),
    ("nkilib.cumsum", None, {"width": 8192}, {"width": 8193}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "phase", "holding", "breaking"), LIMITS)
def test_limits(name: str, phase: str | None, holding: dict[str, Any], breaking: dict[str, Any]) -> None:  # fmt: skip
    needs = [n for n in entry(name).needs if n.phase in (None, phase)]
    assert [n.limit for n in needs if n.holds(holding) is False] == []
    assert len([n.limit for n in needs if n.holds(breaking) is False]) == 1


def test_our_own_limits_are_those_of_the_kernels() -> None:
    """Each limit of a kernel is one of the entry's, and the two agree on both sides of it."""
    described = {e["name"]: e for e in data("own.yaml")["entries"]}
    assert set(described) == set(KERNELS)
    for name, kernel in KERNELS.items():
        ours = entry(f"NK.{name}")
        assert len(ours.needs) + len(ours.call_needs) == len(kernel.limits)
        assert (ours.phases, ours.module) == (kernel.phases, kernel.module)
        figures = {limit.of for limit in kernel.limits}
        assert set(described[name]["sizes"]) <= figures, name
    for width in (128, 16384, 16385, 20000):
        x = SimpleNamespace(shape=(7, width), dtype="bfloat16")
        broken = KERNELS["rms_norm"].broken({"x": x})
        sizes = {"width": width, "dtype": "bfloat16"}
        assert bool(broken) is any(n.holds(sizes) is False for n in entry("NK.rms_norm").needs)


def test_what_is_said_of_evidence() -> None:
    for e in catalogue():
        text = " ".join([e.does, e.evidence, *e.notes]).lower()
        assert not any(w in text for w in ("fast", "speed", "latency", "throughput")), e.name
        assert e.evidence, e.name
        assert (e.kind == "own") <= ("verified in simulation" in e.evidence), e.name


@pytest.mark.parametrize(
    "wrong",
    [{"part": ("atention",)}, {"phases": ("prefil",)}, {"targets": ("trn9",)}, {"can": ("sinks",)},
     {"needs": (Need.of("head_width <= 128"),)}, {"needs": (Need.of("hidden > 1", "both"),)}],
)  # fmt: skip
def test_a_wrong_word_in_a_data_file(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"catalogue: NF\.x: unknown"):
        checked(Entry("NF.x", "nf", "m", "d", **wrong))


def test_every_size_is_used_by_some_limit_or_stands_in_a_model() -> None:
    used = {n for e in catalogue() for need in e.needs for n in need.names}
    assert set(SIZES) - used <= {"vocab"}


def test_the_documentation_says_the_same() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernel-catalogue.md").read_text(encoding="utf-8")
    assert {name for name in SIZES if f"`{name}`" not in page} <= {"tp"}
    block = page.split("```yaml\n")[1].split("```")[0]
    (shown,) = YAML(typ="safe", pure=True).load(block)
    (held,) = [e for e in data("nf.yaml")["entries"] if e["name"] == shown["name"]]
    assert shown.items() <= held.items()
