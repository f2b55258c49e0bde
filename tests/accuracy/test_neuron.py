"""Validation where the Neuron plugin is active: the same commands, with the plugin's double in its place."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from neuron_autoport.accuracy.engine import arguments
from neuron_autoport.accuracy.options import Options
from neuron_autoport.accuracy.platforms import CPU, serving_platform
from neuron_autoport.accuracy.run import validate
from neuron_autoport.accuracy.served import Asking
from neuron_autoport.models.source import load_model_config
from neuron_autoport.rules.library import load_rules
from tests.neuron.double import installed

JOB: dict[str, Any] = {
    "model": "m", "impl": "neuron-transformers", "dtype": "bfloat16", "trust_remote_code": False, "tp": 4,
    "prompts": [[1] * 100, [2] * 30], "steps": 8, "budget": 32,
}  # fmt: skip


def test_without_the_plugin_it_is_the_cpu_engine() -> None:
    assert serving_platform() == CPU
    made = arguments({**JOB, "platform": asdict(CPU)})
    assert made["enforce_eager"] and made["enable_chunked_prefill"]
    assert (made["max_model_len"], made["max_num_batched_tokens"]) == (109, 32)


def test_levels_3_and_2_run_through_the_plugins_functions() -> None:
    with installed() as double:
        source = load_model_config("llama")
        report = validate(source, load_rules(), Options(levels=(3, 2), count=2, length=24))
        called = double.log.functions()
    assert report.passed, [f.why for f in report.failures]
    assert {"qkv_proj", "o_proj", "mlp"} <= set(called)
    assert report.level3 is not None
    judged = {m.class_name for m in report.level3.modules}
    assert {"LlamaAttention", "LlamaMLP", "LlamaRMSNorm"} <= judged
    device, given, *_ = report.not_shown
    assert (
        "NF functions in the plugin's torch forms; nothing here ran on the Neuron plugin" in device
    )
    assert "the Neuron plugin reports those of generated tokens only" in given


def test_what_the_plugins_engine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runner refuses eager execution on a device and prefix caching beside one-piece prefill, and its
    buckets are multiples of 128."""
    with installed():
        cpu_mode = serving_platform()
        monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "0")
        device = serving_platform()  # decided already: the plugin's platform
    assert (cpu_mode.eager, device.eager) == (True, False)
    made = arguments({**JOB, "platform": asdict(device)})
    assert made["enforce_eager"] is False and made["enable_prefix_caching"] is False
    assert "enable_chunked_prefill" not in made
    assert made["max_model_len"] == made["max_num_batched_tokens"] == 128
    assert (made["tensor_parallel_size"], made["max_logprobs"]) == (4, -1)
    assert Asking("neuron-transformers", "bfloat16", 8, 32, place=device).place == device
