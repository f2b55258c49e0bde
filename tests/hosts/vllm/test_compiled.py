"""The compiled decoder: the next start uses what is kept, another rewrite does not, and how much a layer runs.

Nothing is timed: operations are counted in the code that inductor wrote.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("vllm")
from neuron_autoport.hosts.vllm.packed import build
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
    """Llama, per layer: four products, one attention call, four loops, no copies; sines once for all layers.

    One product is the inside of the MLP with its activation, so that no loop has one.
    """
    layers = 3
    folder = make_model("llama", tmp_path, num_hidden_layers=layers)
    cache = tmp_path / "cache"
    assert SAVED in start(folder, cache).log
    written = code(cache)
    shared = set(re.findall(r"^def (\w*subgraph\w*)\(", written, re.MULTILINE))
    (name,) = shared  # one code for all layers but the first, whose input is made in another way
    layer, rest = split_off(written, name)
    assert rest.count(f" = {name}(") == layers - 1
    assert operations(layer) == {
        "packed_linear": 3,
        "packed_halves": 1,
        "onednn": 0,
        "onednn_mm": 0,
        "attend": 1,
        "kept": 0,
        "cpp_fused": 4,
        "copies": 0,
    }
    assert activations(layer) == activations(rest) == [str(build.SILU)]
    outside = operations(rest)  # with the first layer
    assert (outside["packed_linear"], outside["packed_halves"], outside["attend"]) == (3, 1, 1)
    assert (outside["kept"], outside["copies"]) == (2, 0)


def test_a_layer_with_another_class_of_child_is_not_taken_for_the_others(tmp_path: Path) -> None:
    """Its first layer has no norm before attention; torch's own check of layers does not see that."""
    folder = make_model("modernbert-decoder", tmp_path, hidden_size=128, head_dim=None)
    cache = tmp_path / "cache"
    served = start(folder, cache)
    assert SAVED in served.log and served.tokens == hugging_face_tokens(folder, prompts())
    written = code(cache)
    (name,) = set(re.findall(r"^def (\w*subgraph\w*)\(", written, re.MULTILINE))
    assert written.count(f" = {name}(") == 2  # of three layers


def test_layers_that_cannot_share_code_are_compiled_one_by_one(tmp_path: Path) -> None:
    """Layers that hand keys on to later ones, in a dictionary."""
    kinds = ["sliding_attention", "full_attention"] * 2
    sizes = {"num_kv_shared_layers": 2, "num_hidden_layers": 4, "layer_types": kinds}
    folder = make_model(
        "gemma3n_text", tmp_path, vocab_size_per_layer_input=128, sliding_window=8, **sizes
    )
    served = start(folder, tmp_path / "cache")
    assert "layers are compiled one by one: " in served.log and SAVED in served.log
    assert served.tokens == hugging_face_tokens(folder, prompts())


def test_what_torch_cannot_follow_runs_as_it_is_and_says_so(tmp_path: Path) -> None:
    folder = make_model("ctrl", tmp_path, n_embd=128, n_head=4, n_layer=2, dff=96, n_positions=256)
    served = start(folder, tmp_path / "cache")
    assert "the model is not compiled" in served.log and SAVED not in served.log
    assert served.tokens == hugging_face_tokens(folder, prompts())


def test_a_router_is_read_after_it_is_computed(tmp_path: Path) -> None:
    """Its eight outputs are too few for packed weights: it is vLLM's product, among functions that may be moved."""
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    folder = make_model("afmoe", tmp_path, num_hidden_layers=4, num_dense_layers=1, **experts)
    cache = tmp_path / "cache"
    served = start(folder, cache)
    assert SAVED in served.log and served.tokens == hugging_face_tokens(folder, prompts())
    counted = operations(code(cache))
    assert (
        counted["onednn"] == counted["onednn_mm"] + 3 == 3
    )  # one for each block of experts, as a function
    assert counted["packed_linear"] > 0


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


def activations(text: str) -> list[str]:
    """The last argument of each product of halves; what loops would compute them by is not in the code."""
    assert not re.findall(r"silu|sigmoid|gelu|\bexp\(|\.exp\(\)", text)
    return re.findall(r"packed_halves\.default\(.*, (\w+)\)", text)


def operations(text: str) -> dict[str, int]:
    """Calls in a piece of the code."""
    return {
        "packed_linear": text.count("neuron_autoport.packed_linear.default("),
        "packed_halves": text.count("neuron_autoport.packed_halves.default("),
        "onednn": text.count("neuron_autoport.onednn.default("),
        "onednn_mm": text.count("onednn_mm.default("),
        "attend": text.count("neuron_autoport.attend.default("),
        "kept": text.count("neuron_autoport.kept.default("),
        "cpp_fused": len(re.findall(r"^\s+cpp_fused\w*\(", text, re.MULTILINE)),
        "copies": len(re.findall(r"aten\.(clone|copy_?|contiguous)\.", text)),
    }
