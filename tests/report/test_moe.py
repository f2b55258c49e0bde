"""What the report says of mixture-of-experts blocks: as data, and in the tree of the terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from neuron_autoport.models.source import source_of_config
from neuron_autoport.port import port_model
from neuron_autoport.report import schema as s
from neuron_autoport.report.build import build_report
from neuron_autoport.report.tree import module_tree
from tests.trace.routers import small_config


def report_of(model_type: str) -> s.Report:
    config = small_config(model_type)
    target = s.Target(name="trn2", tp=1)
    source = source_of_config(config, model_type)
    return build_report(source, port_model(config, ()), target)


def block_of(report: s.Report) -> s.MoEInfo:
    return next(c.moe for c in report.classes if c.moe is not None)


def test_a_block_that_is_understood() -> None:
    report = report_of("mixtral")
    assert [c.name for c in report.classes if c.moe is not None] == ["MixtralSparseMoeBlock"]
    assert block_of(report) == s.MoEInfo(
        router="softmax, top 2 of 8, renormalized",
        experts="8 experts 64→96→64, act=silu, gate|up",
        shared=None,
        unread=[],
        prefill="NF.router, NF.build_blockwise_mapping, NF.moe_cte; "
        "limits that do not hold: 96 columns < 128",
        decode="NF.moe_block_tkg; with the norm before the block; limits that do not hold: "
        "hidden 64 is no multiple of 256, 96 columns are no multiple of 128",
        vllm="its fused MoE layer",
    )


def test_a_router_that_is_not_understood_has_a_place() -> None:
    moe = block_of(report_of("phimoe"))
    assert moe.router is None and moe.experts is not None
    (unread,) = moe.unread
    assert (unread.part, unread.code) == ("router", "AP220")
    assert unread.place is not None and unread.place.file.endswith("modeling_phimoe.py")
    assert moe.decode.startswith("torch: ")
    assert moe.vllm == "its fused MoE layer"  # the model's own code routes there


@pytest.mark.parametrize(
    ("model_type", "lines"),
    [
        (
            "qwen2_moe",
            ("softmax, top 2 of 8", "shared expert, gated", "vLLM → its fused MoE layer"),
        ),
        ("phimoe", ("router not understood: ", "(AP220)", "decode → torch: ")),
        ("llama4_text", ("on the experts' input", "vLLM → its fused MoE layer")),
        ("nemotron_h", ("act=relu2, no gate", "vLLM → transformers' experts: vLLM's CPU kernels")),
    ],
)
def test_the_tree_shows_a_block(model_type: str, lines: tuple[str, ...]) -> None:
    out = StringIO()
    Console(file=out, width=160).print(module_tree(report_of(model_type), 160))
    for line in lines:
        assert line in out.getvalue()
