"""Traces of transformers' own models: spans and shapes everywhere, one trace per class."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import pytest
from torch import fx

from neuron_autoport.models.build import meta_model
from neuron_autoport.port import example_inputs
from neuron_autoport.trace.attention import TRACE_ATTENTION
from neuron_autoport.trace.canonical import canonical_graph
from neuron_autoport.trace.module_trace import ModuleTrace
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import small_config

TYPES = ["llama", "gemma3_text", "phi3", "opt", "gpt2", "stablelm"]


@lru_cache(maxsize=16)
def traced(model_type: str, layers: int = 2) -> ModuleTrace:
    named = {"gpt2": "n_layer"}.get(model_type, "num_hidden_layers")
    more = {named: layers}
    if model_type == "gemma3_text":
        kinds = ["sliding_attention", "full_attention"]
        more["layer_types"] = [kinds[i % 2] for i in range(layers)]
    config = small_config(model_type, **more)
    model = meta_model(config, attn_implementation=TRACE_ATTENTION)
    return trace_model(model, (), example_inputs())


def distinct(trace: ModuleTrace) -> list[ModuleTrace]:
    return list(dict.fromkeys(part for _, part in trace.walk()))


@pytest.mark.parametrize("model_type", TYPES)
def test_every_node_has_spans_and_a_value(model_type: str) -> None:
    parts = distinct(traced(model_type))
    assert len(parts) > 5
    for part in parts:
        assert part.end is None, part.end
        for node in part.graph.nodes:
            if node.op == "output":
                continue
            assert node.meta.get("val") is not None, (part.module_class, node)
            if node.op in ("call_function", "call_module") and not is_constant(node):
                assert node.meta["spans"], (part.module_class, node)
                code = part.forward.__code__
                first = node.meta["spans"][0]
                assert first.file == code.co_filename and first.line >= code.co_firstlineno
        for op in canonical_graph(part).ops:
            assert op.shape or op.name in ("pieces", "module") or is_scalar(op.node), op


def is_constant(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "constant_tensor"


def is_scalar(node: fx.Node | None) -> bool:
    value = node.meta["val"] if node is not None else None
    return not hasattr(value, "shape") or value.ndim == 0


@pytest.mark.parametrize(
    ("model_type", "counts"),
    [
        ("llama", {"LlamaDecoderLayer": 1, "LlamaAttention": 1, "LlamaRMSNorm": 1, "LlamaMLP": 1}),
        # Linear once per shape: q and o, k and v, gate, up and the head (all 64 -> 96), down.
        ("llama", {"Linear": 4}),
        # A window and a full layer; the norm over hidden states and the one over heads of q and k.
        ("gemma3_text", {"Gemma3DecoderLayer": 2, "Gemma3Attention": 2, "Gemma3MLP": 1}),
        ("phi3", {"Phi3DecoderLayer": 1, "Phi3Attention": 1, "Phi3MLP": 1}),
        ("opt", {"OPTDecoderLayer": 1, "OPTAttention": 1}),
        ("gpt2", {"GPT2Block": 1, "GPT2Attention": 1, "GPT2MLP": 1}),
        ("stablelm", {"StableLmDecoderLayer": 1, "StableLmMLP": 1}),
    ],
)
def test_one_trace_per_class_however_many_layers(model_type: str, counts: dict[str, int]) -> None:
    for layers in (2, 6):
        found = Counter(p.module_class.__name__ for p in distinct(traced(model_type, layers)))
        assert {name: found[name] for name in counts} == counts
    calls = [p for _, p in traced(model_type, 6).walk() if p.module_class.__name__ in counts]
    assert len(calls) >= 6


def test_window_and_full_layers_are_told_apart_by_what_they_read() -> None:
    windows = {
        p.reads["sliding_window"]
        for p in distinct(traced("gemma3_text"))
        if p.module_class.__name__ == "Gemma3Attention"
    }
    assert windows == {4, None}


def test_the_chain_has_the_call_in_forward_first() -> None:
    """Nodes made in `apply_rotary_pos_emb` carry the call that stands in the attention's forward."""
    part = next(p for p in distinct(traced("llama")) if p.module_class.__name__ == "LlamaAttention")
    chains = [n.meta["spans"] for n in part.graph.nodes if len(n.meta.get("spans", ())) > 1]
    rotary = [c for c in chains if c[1].function == "apply_rotary_pos_emb"]
    assert len({c[0] for c in rotary}) == 1
    assert {c[0].function for c in rotary} == {"LlamaAttention.forward"}
    assert any(c[-1].function == "rotate_half" and len(c) == 3 for c in rotary)
