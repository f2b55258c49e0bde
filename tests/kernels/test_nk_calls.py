"""What a plan says of the kernels behind NK calls: their names, their limits, and which of these break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from neuron_autoport.cli.app import app
from neuron_autoport.kernels.calls import KernelCall, arguments, kernel_calls
from neuron_autoport.port import port_model
from neuron_autoport.rules.library import load_rules
from tests.helpers import small_config


def report(model: str, *more: str) -> dict[str, Any]:
    ran = CliRunner().invoke(app, ["inspect", model, "--json", *more])
    assert ran.exit_code == 0, ran.output
    found: dict[str, Any] = json.loads(ran.output)
    return found


def sites(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [site for c in found["classes"] for site in c["sites"]]


def calls_of(model_type: str, **changes: Any) -> dict[str, tuple[KernelCall, ...]]:
    """Rule -> kernel calls, for a small model traced in bfloat16."""
    config = small_config(model_type, **changes)
    config.dtype = torch.bfloat16
    port = port_model(config, load_rules())
    return {s.rule.name: kernel_calls(s) for p in port.plans for s in p.sites}


def test_every_nk_call_has_a_kernel_and_no_nf_call_has_one() -> None:
    found = sites(report("gemma3_text"))
    for site in found:
        names = {k["name"] for k in site["kernels"]}
        own = site["call"].startswith("NK.")
        assert names == ({site["call"].replace("NK.", "neuron_autoport.")} if own else set())
        for kernel in site["kernels"]:
            assert kernel["runs"] == f"kernel: {kernel['name']}"
            assert kernel["evidence"] == "verified in simulation against torch and float64"
            assert any("dtype in (float32, bfloat16, float16)" in x for x in kernel["limits"])
    assert {"NK.rms_norm", "NK.add_rms_norm", "NK.qk_norm_rope"} <= {s["call"] for s in found}
    assert not any(s["kernels"] for s in sites(report("gemma3_text", "--target", "cpu")))


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """A Llama whose rows are wider than a kernel's SBUF takes."""
    sizes = {"hidden_size": 16640, "num_attention_heads": 130, "num_key_value_heads": 2}
    small_config("llama", **sizes, head_dim=128).save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_broken_limit_is_in_the_report(wide: str) -> None:
    """Also of a norm that another rule took in: its width and weight are the captured norm's."""
    seen = {s["rule"]: s for s in sites(report(wide))}
    for rule in ("rms_norm", "add_rms_norm"):
        assert {
            "text": "x.shape[-1] <= 16384",
            "figures": "16640, more than 16384",
            "holds_from_tp": None,
        } in seen[rule]["limits"]
        (kernel,) = seen[rule]["kernels"]
        assert kernel["runs"].startswith("torch: x.shape[-1] is 16640, more than 16384: a row")
    assert seen["rope_pair"]["kernels"][0]["runs"] == "kernel: neuron_autoport.rope"
    text = CliRunner().invoke(app, ["inspect", wide], env={"COLUMNS": "100"}).output
    assert "NK.add_rms_norm in LlamaDecoderLayer" in text and "16640, more than 16384" in text
    assert "kernel: neuron_autoport.rms_norm" not in text.partition("Our own kernels")[2]


def test_arguments_of_a_norm_that_was_taken_in() -> None:
    port = port_model(small_config("gemma2"), load_rules())
    (site,) = [s for p in port.plans for s in p.sites if s.rule.name == "add_rms_norm"][:1]
    found = arguments(site, "add_rms_norm")
    width = int(port.model.config.hidden_size)
    assert found["weight"].shape == (width,) and found["x"].shape[-1] == width
    assert found["residual"].shape == found["x"].shape
    assert (found["offset"], found["weight_in_fp32"]) == (1.0, True)


def test_tables_in_float32_go_to_the_kernel() -> None:
    """OLMo 2 keeps them so beside bfloat16 heads."""
    found = calls_of("olmo2")
    assert [c.runs for c in found["rope_fp32_pair"]] == ["kernel: neuron_autoport.rope"]
    assert all(not c.broken for calls in found.values() for c in calls)
