"""The compiled decoder: the next start uses what is kept, another rewrite does not, and how much a layer runs.

Nothing is timed: operations are counted in the code that inductor wrote.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts.vllm.serving import Served, hugging_face_tokens, make_model, prompts, serve

pytestmark = pytest.mark.serve
LOADED, SAVED = "Directly load AOT compilation", "saved AOT compiled function"


def start(folder: Path, cache: Path, **environment: str) -> Served:
    return serve(folder, prompts(), rank={"VLLM_CACHE_ROOT": str(cache), **environment})


def test_the_second_start_does_not_compile(tmp_path: Path) -> None:
    folder, cache = make_model("llama", tmp_path), tmp_path / "cache"
    expected = hugging_face_tokens(folder, prompts())
    first = start(folder, cache)
    assert SAVED in first.log and LOADED not in first.log, first.log[-4000:]
    again = start(folder, cache)
    assert LOADED in again.log and SAVED not in again.log, again.log[-4000:]
    assert "load failure" not in again.log and "unable to save" not in first.log
    assert first.tokens == again.tokens == expected
    assert first.fused == again.fused and first.fused[0] == first.fused[1]

    other = start(folder, cache, AUTOPORT_WITHOUT="*")  # the same model and settings, not rewritten
    assert LOADED not in other.log and other.tokens == expected
    assert len(list(cache.glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model"))) == 2


def test_a_layer_runs_no_more_than_it_must(tmp_path: Path) -> None:
    """Llama, per layer: four products, one attention call, four loops, no copies; sines once for all layers."""
    counted = []
    for layers in (2, 3):
        folder = make_model("llama", tmp_path / str(layers), num_hidden_layers=layers)
        cache = tmp_path / f"cache{layers}"
        assert SAVED in start(folder, cache).log
        counted.append(operations(cache))
    layer = {name: counted[1][name] - n for name, n in counted[0].items()}
    assert layer == {"onednn_mm": 4, "attend": 1, "kept": 0, "cpp_fused": 4, "copies": 0}
    assert counted[0]["kept"] == 2 and counted[0]["copies"] == 0


def operations(cache: Path) -> dict[str, int]:
    """Calls in the one wrapper that inductor wrote."""
    texts = [f.read_text(encoding="utf-8") for f in cache.rglob("*.py")]
    (text,) = [t for t in texts if "neuron_autoport.attend" in t]
    calls = text[text.index("def call(") :]
    calls = calls[: calls.index("\nrunner = ")] if "\nrunner = " in calls else calls
    return {
        "onednn_mm": calls.count("onednn_mm.default("),
        "attend": calls.count("neuron_autoport.attend.default("),
        "kept": calls.count("neuron_autoport.kept.default("),
        "cpp_fused": len(re.findall(r"^\s+cpp_fused\w*\(", calls, re.MULTILINE)),
        "copies": len(re.findall(r"aten\.(clone|copy_?|contiguous)\.", calls)),
    }
