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


def test_layers_share_code_that_does_no_more_than_it_must(tmp_path: Path) -> None:
    """Llama, per layer: four products, one attention call, five loops, no copies; sines once for all layers."""
    layers = 3
    folder = make_model("llama", tmp_path, num_hidden_layers=layers)
    cache = tmp_path / "cache"
    assert SAVED in start(folder, cache).log
    written = code(cache)
    shared = set(re.findall(r"^def (\w*subgraph\w*)\(", written, re.MULTILINE))
    (name,) = shared  # one code for all layers
    layer, rest = split_off(written, name)
    assert rest.count(f" = {name}(") == layers
    assert operations(layer) == {
        "onednn_mm": 4,
        "attend": 1,
        "kept": 0,
        "cpp_fused": 5,
        "copies": 0,
    }
    outside = operations(rest)
    assert (outside["onednn_mm"], outside["attend"]) == (0, 0)  # the head is not compiled with it
    assert (outside["kept"], outside["copies"]) == (2, 0)


def test_layers_that_differ_have_code_of_their_own(tmp_path: Path) -> None:
    """Gemma 3: windows are the attention layer's own; what a layer's graph reads are other tables of sines."""
    folder, cache = make_model("gemma3_text", tmp_path), tmp_path / "cache"
    served = start(folder, cache)
    assert SAVED in served.log and served.tokens == hugging_face_tokens(folder, prompts())
    written = code(cache)
    names = set(re.findall(r"^def (\w*subgraph\w*)\(", written, re.MULTILINE))
    calls = sum(written.count(f" = {name}(") for name in names)
    assert calls == 6 and len(names) <= 2


def code(cache: Path) -> str:
    """The one wrapper that inductor wrote."""
    texts = [f.read_text(encoding="utf-8") for f in cache.rglob("*.py")]
    (text,) = [t for t in texts if "neuron_autoport.attend" in t]
    return text


def split_off(written: str, name: str) -> tuple[str, str]:
    """(the function, everything else)."""
    start = written.index(f"def {name}(")
    end = written.index("\n\n", start)
    return written[start:end], written[:start] + written[end:]


def operations(text: str) -> dict[str, int]:
    """Calls in a piece of the code."""
    return {
        "onednn_mm": text.count("onednn_mm.default("),
        "attend": text.count("neuron_autoport.attend.default("),
        "kept": text.count("neuron_autoport.kept.default("),
        "cpp_fused": len(re.findall(r"^\s+cpp_fused\w*\(", text, re.MULTILINE)),
        "copies": len(re.findall(r"aten\.(clone|copy_?|contiguous)\.", text)),
    }
