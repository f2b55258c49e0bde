"""`autoport inspect --buckets`: limits worked out by hand from the plugin's contract, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL, Run

# 16 heads of 64 on hidden size 1024; inner size 8192; one key/value head per rank on 4 ranks.
WIDE = {
    **SMALL,
    "hidden_size": 1024,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}


@pytest.fixture
def table(run: Run, tmp_path: Path) -> Any:
    """table(changes, *options): `serving` of the report, by (phase, tokens, call)."""

    def get(changes: dict[str, Any], *options: str) -> Any:
        (tmp_path / "config.json").write_text(json.dumps({**WIDE, **changes}), encoding="utf-8")
        ran = run("inspect", str(tmp_path), "--json", *options)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)["serving"]

    return get


def runs(serving: Any) -> dict[tuple[str, int, str], str]:
    return {(c["phase"], c["tokens"], c["call"]): c["runs"] for c in serving["calls"]}


def test_each_limit_of_a_rank(table: Any) -> None:
    """Four ranks: 384 columns, 4 heads, inner size 2048, one key/value head: all in kernels."""
    found = runs(table({}, "--tp", "4", "--buckets", "128,512"))
    for call in ("NF.qkv_proj", "NF.o_proj", "NF.mlp", "NF.flash_attention"):
        assert found["prefill", 512, call] == "kernel"
    assert found["decode", 1, "NF.attention_decode"] == "kernel"
    # the fused decode has them in it
    assert ("decode", 1, "NF.qkv_proj") not in found and ("decode", 1, "NK.rope") not in found
    assert found["decode", 1, "NF.mlp"] == "kernel"
    assert found["chunked prefill", 512, "NF.segmented_attention"] == "kernel"
    assert "128 tokens is none of 512" in found["chunked prefill", 128, "NF.segmented_attention"]


def test_limits_broken_on_one_rank(table: Any) -> None:
    """1536 columns > hidden size 1024; inner size 8192 > 4096 above 128 tokens; four key/value heads."""
    found = runs(table({}, "--buckets", "128,129"))
    assert found["prefill", 128, "NF.qkv_proj"].startswith("torch: 1536 columns per rank")
    assert found["prefill", 128, "NF.mlp"] == "kernel"
    assert found["prefill", 129, "NF.mlp"].startswith("torch: inner size 8192 per rank")
    assert found["decode", 1, "NF.mlp"] == "kernel"
    assert "4 key/value heads per rank" in found["decode", 1, "NF.attention_decode"]
    assert "decode", 1 in {k[:2] for k in found if k[2] == "NF.qkv_proj"}


@pytest.mark.parametrize(
    ("changes", "tokens", "call", "reason"),
    [
        ({"hidden_size": 1152, "head_dim": 64}, 64, "NF.mlp", "1152 is no multiple of 256"),
        ({"hidden_size": 1152, "intermediate_size": 4096}, 512, "NF.mlp", None),
        ({"hidden_size": 1088}, 512, "NF.mlp", "1088 is no multiple of 128"),
        ({"hidden_size": 1088}, 512, "NF.qkv_proj", "hidden size 1088"),
        ({"num_attention_heads": 32, "head_dim": 32}, 64, "NF.o_proj", "32 heads per rank"),
        ({"head_dim": 192, "num_attention_heads": 4}, 64, "NF.o_proj", "heads are 192 wide"),
        ({"intermediate_size": 4096}, 512, "NF.mlp", None),
        ({"intermediate_size": 4097}, 512, "NF.mlp", "inner size 4097"),
        ({"hidden_size": 7168, "intermediate_size": 8192}, 256, "NF.mlp", None),
        ({"hidden_size": 7168, "intermediate_size": 8192}, 257, "NF.mlp", "inner size 8192"),
        (
            {"hidden_size": 7168, "intermediate_size": 8192, "mlp_bias": True},
            256,
            "NF.mlp",
            "inner size 8192",
        ),
    ],
)
def test_one_limit(
    changes: dict[str, Any], tokens: int, call: str, reason: str | None, table: Any
) -> None:
    found = runs(table(changes, "--buckets", str(tokens)))["prefill", tokens, call]
    if reason is None:
        assert found == "kernel"
    else:
        assert found.startswith("torch: ") and reason in found


def test_what_is_refused(table: Any) -> None:
    got = table({"vocab_size": 1001}, "--tp", "3", "--buckets", "2,128")
    said = {r["what"]: r["message"] for r in got["refused"]}
    assert "16 query and 4 key/value heads do not divide by 3" in said["heads"]
    assert "vocabulary of 1001" in said["vocabulary"]
    assert [r["message"] for r in got["refused"] if r["what"] == "bucket"] == [
        "a prefill bucket of 2 tokens is not above 3 ranks",
        "a prefill bucket of 128 tokens does not divide by 3 ranks",
    ]
    assert got["valid_tp"] == [1]
    assert "LlamaAttention" in got["whole"] and got["kv_heads"] == {"LlamaAttention": 4}


def test_replication_and_sizes_that_work(table: Any) -> None:
    got = table({}, "--tp", "8", "--buckets", "128")
    assert got["kv_heads"] == {"LlamaAttention": 1} and got["kv_copies"] == {"LlamaAttention": 2}
    assert got["valid_tp"] == [1, 2, 4, 8, 16] and got["decode_kernel_tp"] == [4, 8, 16]
    assert got["refused"] == []
    two = table({}, "--tp", "2", "--buckets", "128")
    assert [r["what"] for r in two["refused"]] == ["kv_heads"]
    assert two["refused"][0]["instead"] == "--tp 4 has one per rank"
    many = table({}, "--tp", "4", "--buckets", "128", "--batch", "33")  # of 4 heads: 132 rows
    assert [r["what"] for r in many["refused"]] == ["batch"]


def test_strict_and_mistakes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(WIDE), encoding="utf-8")
    ran = run("inspect", str(tmp_path), "--tp", "2", "--buckets", "128", "--strict")
    assert ran.code == 1 and "lose the decode kernel" in ran.err
    for options in (
        ("--buckets", "12x"),
        ("--buckets", "0"),
        ("--buckets", "8", "--target", "cpu"),
    ):
        assert run("inspect", str(tmp_path), *options).code == 2


def test_a_model_the_runner_cannot_drive(run: Run) -> None:
    ran = run("inspect", "mamba", "--buckets", "128")
    assert ran.code == 0 and "not served: " in ran.out and "attention interface" in ran.out
