"""`autoport inspect --json`: the schema, its documentation, and numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_autoport.report.schema import Report, json_schema
from tests.cli.conftest import Run

Folder = Callable[..., str]
pytestmark = pytest.mark.usefixtures("few_rules")
DOCS = Path(__file__).parents[2] / "docs" / "inspect-json.md"


@pytest.fixture
def small(run: Run, model_folder: Folder) -> dict[str, Any]:
    ran = run("inspect", model_folder(), "--json")
    assert (ran.code, ran.err) == (0, "")
    found: dict[str, Any] = json.loads(ran.out)
    return found


def _sites(report: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [s for c in report["classes"] for s in c["sites"] if s["rule"] == rule]


def test_output_is_the_documented_schema(run: Run) -> None:
    for model in ("gemma3_text", "gpt2"):
        ran = run("inspect", model, "--json")
        report = Report.model_validate_json(ran.out)
        assert json.loads(report.to_json()) == json.loads(ran.out)
    assert json.loads(ran.out)["schema"] == 1


def test_every_field_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    schema = json_schema()
    parts = [schema, *schema["$defs"].values()]
    fields = {name for part in parts for name in part.get("properties", {})}
    assert not {f for f in fields if f"`{f}`" not in text}


def test_two_runs_differ_in_seconds_only(run: Run, model_folder: Folder) -> None:
    folder = model_folder()
    first, second = (json.loads(run("inspect", folder, "--json").out) for _ in range(2))
    assert first.pop("seconds") and second.pop("seconds")
    assert first == second


def test_model_and_classes(small: dict[str, Any]) -> None:
    # embedding and head 2 * 1000 * 256; a layer: q 256*256, k and v 256*128, o 256*256,
    # three of 256*512, two norms of 256; the last norm
    layer = 65536 + 2 * 32768 + 65536 + 3 * 131072 + 512
    assert small["model"]["parameters"] == 512000 + 3 * layer + 256
    assert small["model"]["architecture"] == "LlamaForCausalLM"
    assert small["model"]["dtype"] == "bfloat16"
    attention = next(c for c in small["classes"] if c["name"] == "LlamaAttention")
    assert attention["paths"] == [f"model.layers.{i}.self_attn" for i in range(3)]
    assert small["head"] == {
        "scale": 1.0,
        "soft_cap": None,
        "scale_after_cap": 1.0,
        "module": "lm_head",
        "unknown": None,
    }


def test_site_of_the_projections(small: dict[str, Any]) -> None:
    (site,) = _sites(small, "qkv_proj")
    assert site["call"] == "NF.qkv_proj"
    assert site["modules"] == ["k_proj", "q_proj", "v_proj"]
    assert site["found"]["heads"] == "4/2 of 64"
    (weight,) = site["weights"]
    assert (weight["in_features"], weight["sizes"], weight["shard"]) == (
        256,
        [256, 128, 128],
        "heads",
    )
    assert [p["module"] for p in weight["parts"]] == ["q_proj", "k_proj", "v_proj"]
    assert site["work"]["flops"] == 3 * 2 * 256 * 512
    assert site["weight_bytes"] == 3 * 2 * 256 * 512
    place = site["place"]
    assert place["file"] == "transformers/models/llama/modeling_llama.py"
    expression = place["source"][place["column"] - 1 : place["end_column"] - 1]
    assert expression == "self.q_proj(hidden_states)"


def test_work_by_hand(small: dict[str, Any]) -> None:
    # the three products, silu and the product of gate and up
    (mlp,) = _sites(small, "gated_mlp")
    assert mlp["work"]["flops"] == 3 * (3 * 2 * 256 * 512 + 2 * 512)
    assert mlp["weight_bytes"] == 3 * 3 * 2 * 256 * 512
    # square, mean, x * rsqrt and weight * x over 256; + eps and rsqrt once: seven norms
    (norm,) = _sites(small, "rms_norm")
    assert norm["work"]["flops"] == 7 * (4 * 256 + 2)
    rows = {(r["class_name"], r["kind"]): r for r in small["leftovers"]}
    # 2 * heads * context * (64 + 64), softmax 5 per score, three layers
    attention = rows["LlamaAttention", "attention"]["work"]
    assert attention["flops"] == 3 * (2 * 4 * 1024 * 128 + 5 * 4 * 1024)
    # cache of two heads in bfloat16, query in and result out
    assert attention["bytes"] == 3 * (2 * 1024 * 128 * 2 + 2 * 2 * 256)
    head = rows["LlamaForCausalLM", "linear"]
    assert head["modules"] == ["lm_head"]
    assert head["work"]["flops"] == 2 * 256 * 1000


def test_coverage_by_hand(small: dict[str, Any]) -> None:
    coverage = small["coverage"]
    linear = 65536 + 2 * 32768 + 65536 + 3 * 131072
    # three layers of five sites, one more norm
    assert coverage["sites"] == {"part": 16, "whole": 16, "percent": 100.0}
    # seven products a layer, and the head in no site
    assert (coverage["products"]["part"], coverage["products"]["whole"]) == (21, 22)
    assert coverage["weight_bytes"]["part"] == 2 * (3 * linear + 7 * 256)
    assert coverage["weight_bytes"]["whole"] == 2 * small["model"]["parameters"]
    assert coverage["flops"]["part"] == 2 * 3 * linear + 3 * 1024 + 7 * 1026
    fused, left = coverage["flops"]["part"], sum(r["work"]["flops"] for r in small["leftovers"])
    assert abs(coverage["flops"]["whole"] - fused - left) <= len(small["leftovers"])
    assert coverage["traced"] is True


def test_tied_weights_count_once(run: Run, model_folder: Folder) -> None:
    ran = run("inspect", model_folder(tie_word_embeddings=True), "--json")
    layer = 65536 + 2 * 32768 + 65536 + 3 * 131072 + 512
    assert json.loads(ran.out)["model"]["parameters"] == 256000 + 3 * layer + 256


def test_tree_folds_equal_layers(small: dict[str, Any]) -> None:
    base = small["tree"]["children"][0]
    layers = next(n for n in base["children"] if n["class_id"] == "LlamaDecoderLayer")
    assert layers["name"] == "layers.0-2 ×3"
    assert layers["paths"] == [f"model.layers.{i}" for i in range(3)]
    attention = next(n for n in layers["children"] if n["name"] == "self_attn")
    inside = {n["name"]: n["inside"] for n in attention["children"]}
    assert inside == {
        "q_proj": "qkv_proj",
        "k_proj": "qkv_proj",
        "v_proj": "qkv_proj",
        "o_proj": "o_proj",
    }


def test_layers_that_differ_are_apart(run: Run) -> None:
    report = json.loads(run("inspect", "gemma3_text", "--json").out)
    base = report["tree"]["children"][0]
    layers = [n for n in base["children"] if n["name"].startswith("layers.")]
    # every sixth of 26 layers is global
    everyone = set(range(26))
    wide = {5, 11, 17, 23}
    numbers = [{int(p.rsplit(".", 1)[1]) for p in n["paths"]} for n in layers]
    assert numbers == [everyone - wide, wide]
    found = [
        next(c for c in report["classes"] if n["paths"][0] + ".self_attn" in c["paths"])["sites"][0]
        for n in layers
    ]
    assert ["window" in site["found"] for site in found] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "limits"),
    [
        ((), {"12288 > 4096", "11008 > 4096", "32 > 17"}),
        (("--tp", "2"), {"6144 > 4096", "5504 > 4096"}),
        (("--tp", "4"), set()),
        (("--target", "cpu"), set()),
    ],
)
def test_limits_follow_target_and_ranks(
    run: Run, model_folder: Folder, arguments: tuple[str, ...], limits: set[str]
) -> None:
    folder = model_folder(
        hidden_size=4096,
        intermediate_size=11008,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
    )
    report = json.loads(run("inspect", folder, "--json", *arguments).out)
    broken = [x for c in report["classes"] for s in c["sites"] for x in s["limits"]]
    assert {x["figures"] for x in broken} == limits
    mended = {x["figures"]: x["holds_from_tp"] for x in broken}
    if not arguments:
        assert mended == {"12288 > 4096": 4, "11008 > 4096": 4, "32 > 17": 2}
