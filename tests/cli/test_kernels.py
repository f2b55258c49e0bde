"""`autoport kernels`: what it finds, and how it judges a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from neuron_autoport.catalogue.load import catalogue
from neuron_autoport.catalogue.search import parse_query, search
from tests.cli.conftest import Run


def found(text: str) -> dict[str, list[str]]:
    """Names of the hits in order, with the limits they do not keep."""
    hits = search(catalogue(), parse_query(text))
    return {h.entry.name: [n.limit for n in h.unmet] for h in hits}


# -- searching


def test_an_operation_and_a_size() -> None:
    hits = found("attention head_dim 256")
    assert next(iter(hits)) == "NK.softcap_attention"
    assert hits["NK.softcap_attention"] == []
    assert hits["NF.flash_attention"] == ["v_head_dim <= 128", "head_dim <= 128"]
    assert hits["NF.attention_decode"] == ["head_dim <= 128"]
    # What has nothing to do with heads comes last: masks.
    assert list(hits).index("NF.gen_attention_decode_mask") > list(hits).index(
        "nkilib.attention_cte"
    )
    assert found("attention head_dim 128")["NF.flash_attention"] == []
    assert "NF.mlp" not in hits


def test_an_operation_and_a_phase() -> None:
    hits = list(found("rmsnorm decode"))
    assert {"NF.attention_decode", "NK.rms_norm", "nkilib.rmsnorm_tkg"} <= set(hits)
    assert "nkilib.rmsnorm_quant_kernel" not in hits  # prefill only
    assert hits.index("NK.rms_norm") < hits.index("NF.mlp")  # it is one; the other has one inside
    assert "NF.o_proj" in found("projection prefill") and "NF.o_proj" not in found(
        "projection decode"
    )


@pytest.mark.parametrize("text", ["RMSNorm decode", "rms-norm tkg", "rms_norm generation kernels"])
def test_spellings(text: str) -> None:
    assert found(text) == found("rmsnorm decode")


@pytest.mark.parametrize("text", ["attention D=256", "attention d 256", "attention head_size:256"])
def test_spellings_of_a_size(text: str) -> None:
    assert found(text) == found("attention head_dim 256")


def test_sources_chips_and_both_sizes() -> None:
    assert all(name.startswith("NK.") for name in found("own"))
    trn2 = found("moe nkilib trn2")
    assert "nkilib.moe_mxfp8" in found("moe nkilib trn3") and "nkilib.moe_mxfp8" not in trn2
    wide = found("mlp prefill hidden 4096 intermediate 14336")["NF.mlp"]
    assert len(wide) == 1 and wide[0].startswith("intermediate <= 4096 or")
    assert found("mlp decode hidden 4096 intermediate 14336")["NF.mlp"] == []
    assert found("mlp hidden 4224 intermediate 512")["NF.mlp"] == []  # 33 * 128: in prefill
    assert found("mlp decode hidden 4224 intermediate 512")["NF.mlp"] == ["hidden % 256 == 0"]


def test_printed(run: Run) -> None:
    ran = run("kernels", "attention", "head_dim", "256", "prefill", "nf")
    assert (ran.code, ran.err) == (0, "")
    first, _, rest = ran.out.partition("\n\n")
    assert first == f"4 of {len(catalogue())} kernels: attention, prefill, nf, head_dim 256"
    block = next(b for b in rest.split("\n\n") if b.startswith("NF.flash_attention"))
    assert block.splitlines()[0] == "NF.flash_attention  NF, prefill"
    assert "  ✗ head_dim <= 128" in block.splitlines()
    assert block.splitlines()[-1] == "  does not take head_dim 256: there its torch form runs"
    listed = run("kernels").out.splitlines()
    assert len(listed) == len(catalogue()) + 1
    assert any(line.startswith("NK.rope ") for line in listed)


def test_json(run: Run) -> None:
    printed = json.loads(run("kernels", "rope", "nkilib", "--json").out)
    assert printed["query"] == {
        "words": ["rope"], "sizes": {}, "phases": [], "targets": [], "kinds": ["nkilib"]
    }  # fmt: skip
    (rope,) = [k for k in printed["kernels"] if k["name"] == "nkilib.rope_hf"]
    assert rope["module"] == "nkilib.core.embeddings.rope_hf"
    assert rope["phases"] == ["prefill", "training"]
    assert {"limit": "seq % (128 * cores) == 0", "phase": None, "why": ""} in rope["needs"]
    assert rope["evidence"] == "since 2.29, verified in simulation against torch"
    assert "model" not in rope


@pytest.mark.parametrize(
    ("words", "message"),
    [(["atention"], "no kernel has to do with `atention`; did you mean `attention`?"),
     (["attention", "256"], "the number 256 belongs to no size"),
     (["quux"], "no kernel has to do with `quux`")],
)  # fmt: skip
def test_a_query_that_says_nothing(run: Run, words: list[str], message: str) -> None:
    ran = run("kernels", *words)
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {message}" in ran.err and "autoport kernels" in ran.err


def test_a_chip_there_is_not(run: Run) -> None:
    assert run("kernels", "mlp", "--target", "trn9").code == 2


# -- for a model


def judged(run: Run, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    printed = json.loads(run("kernels", *arguments, "--json").out)
    return {k["name"]: k["model"] for k in printed["kernels"]}


def reasons(fits: list[dict[str, Any]]) -> list[list[str]]:
    return [f["reasons"] for f in fits]


def test_sizes_of_a_model(run: Run, model_folder: Callable[..., str]) -> None:
    """Four query and two key/value heads of 64, hidden 256, inner width 512, three layers."""
    folder = model_folder()
    fits = judged(run, "--for", folder)
    (attention,) = fits["NF.flash_attention"]
    assert attention["sizes"] == {
        "head_dim": 64, "v_head_dim": 64, "heads": 4, "kv_heads": 2, "dtype": "bfloat16",
        "hidden": 256, "qkv_width": 512,
    }  # fmt: skip
    assert (attention["fits"], attention["count"], attention["asks_for"]) == (True, 3, ["gqa"])
    assert attention["asked_of_each_call"] == ["batch * heads <= 512", "seq <= 131072"]
    assert reasons(fits["NF.qkv_proj"]) == [["qkv_width <= hidden does not hold: 512 > 256"]]
    (mlp,) = fits["NF.mlp"]
    assert mlp["sizes"] == {"hidden": 256, "intermediate": 512} and mlp["fits"]
    (norm,) = fits["NK.rms_norm"]
    assert norm["sizes"]["width"] == 256 and norm["fits"]
    assert reasons(fits["nkilib.rmsnorm_tkg"]) == [
        ["it does not do a result in the input's type and layout"]
    ]
    (embedding,) = fits["NF.embedding"]
    assert embedding["sizes"] == {"vocab": 1000, "width": 256}
    assert "NF.moe_cte" not in fits  # the model has no use for it
    halved = judged(run, "projection", "--for", folder, "--tp", "2")["NF.qkv_proj"]
    assert halved[0]["sizes"]["qkv_width"] == 256 and halved[0]["fits"]


def test_softcap_and_wide_heads(run: Run, model_folder: Callable[..., str]) -> None:
    folder = model_folder(
        model_type="gemma2", head_dim=256, hidden_activation="gelu_pytorch_tanh",
        attn_logit_softcapping=50.0, final_logit_softcapping=None, query_pre_attn_scalar=256,
        sliding_window=8, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    fits = judged(run, "attention", "prefill", "--for", folder)
    window, full = fits["NK.softcap_attention"]
    assert window["fits"] and full["fits"]
    assert window["sizes"]["window"] == 8 and "window" not in full["sizes"]
    assert window["asks_for"] == ["gqa", "window", "softcap"]
    assert reasons(fits["NF.flash_attention"]) == 2 * [[
        "it does not do a soft-cap of scores",
        "v_head_dim <= 128 does not hold: 256 > 128",
        "head_dim <= 128 does not hold: 256 > 128",
    ]]  # fmt: skip
    assert "it is for a sliding window only" in reasons(fits["NF.swa_fused_attention"])[1]
    printed = run("kernels", "attention", "prefill", "own", "--for", folder, width=200).out
    assert "  fits Gemma2Attention ×2: head_dim 256, v_head_dim 256" in printed
    assert "fits: its limits hold for the model's sizes" in printed


def test_experts_and_sinks(run: Run, model_folder: Callable[..., str]) -> None:
    folder = model_folder(
        model_type="gpt_oss", num_local_experts=8, num_experts_per_tok=2, num_hidden_layers=1,
        sliding_window=8, layer_types=["full_attention"], hidden_size=320, intermediate_size=96,
    )  # fmt: skip
    fits = judged(run, "--for", folder)
    (experts,) = fits["NF.moe_block_tkg"]
    assert experts["sizes"] == {
        "experts": 8, "hidden": 320, "expert_intermediate": 96, "top_k": 2
    }  # fmt: skip
    assert experts["reasons"] == [
        "hidden % 256 == 0 does not hold: 64 != 0",
        "expert_intermediate % 128 == 0 does not hold: 96 != 0",
    ]
    assert reasons(fits["NF.segmented_attention_cp"]) == [["it does not do attention sinks"]]


def test_a_part_that_no_rule_finds(run: Run, model_folder: Callable[..., str]) -> None:
    printed = run("kernels", "scan", "nkilib", "--for", model_folder(), width=200).out
    assert "  not judged: no rule found its part in the model (scan)" in printed
