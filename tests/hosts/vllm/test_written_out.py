"""Attention written out in a layer: read from its graph, rewritten in its source, or refused with the operation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.mixing import read_masks
from neuron_autoport.hosts.vllm.written_out.classes import make_class
from neuron_autoport.hosts.vllm.written_out.facts import Form, read_form
from neuron_autoport.hosts.vllm.written_out.known import known_values
from neuron_autoport.hosts.vllm.written_out.prove import call_interface
from neuron_autoport.hosts.vllm.written_out.read import NotPlain, find_written_out
from neuron_autoport.hosts.vllm.written_out.region import rewrite_region
from neuron_autoport.models.source import source_of_config
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.trace.tracer import trace_model
from tests.hosts.vllm import attention_look_alikes as look_alikes
from tests.hosts.vllm import attention_zoo as zoo
from tests.hosts.vllm.serving import hugging_face_tokens, make_model, prompts, serve

TOKENS = 23


def read(layer: zoo.Layer) -> tuple[Form, type]:
    """The form of a layer's attention, and its rewritten class.

    Raises:
        NotPlain: it is refused.
    """
    with torch.device("meta"):
        whole = zoo.Whole(type(layer)()).eval()
    trace = trace_model(whole, (torch.empty(2, TOKENS, zoo.WIDTH, device="meta"),))
    assert all(part.end is None for _, part in trace.walk())
    found: list[Any] = []

    def see(path: str, part: Any, values: Any) -> None:
        if path != "layer":
            return
        written = find_written_out(part)
        assert written is not None
        form = read_form(written, values, part, layer)
        made = rewrite_region(written, part)
        flat = replace(form, flat_weights=made.flat_weights)
        found.append((flat, make_class(type(layer), made)))

    known_values(trace, zoo.Whole(layer), see)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("kind", zoo.PLAIN, ids=lambda k: k.__name__)
def test_plain_attention_is_read_and_rewritten(kind: type[zoo.Layer]) -> None:
    torch.manual_seed(0)
    layer = kind().eval()
    form, rewritten = read(layer)
    scale, window, slopes = zoo.PLAIN[kind]
    assert form.heads == zoo.HEADS
    assert form.scale == pytest.approx(scale, rel=1e-5)
    assert form.window == window
    assert (form.slopes is None) is (slopes is None)
    assert slopes is None or form.slopes == pytest.approx(slopes, rel=1e-4)
    x = torch.randn(2, 37, zoo.WIDTH)
    with torch.no_grad():
        expected = zoo.Whole(layer)(x)
        layer.__class__ = rewritten
        layer.attention_form, layer.attention_call = form, "eager"  # type: ignore[assignment]
        found = zoo.Whole(layer)(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", zoo.PLAIN, ids=lambda k: k.__name__)
def test_the_rewritten_layer_computes_no_scores(kind: type[zoo.Layer]) -> None:
    """What is left asks the interface: a product or a softmax of the layer's own would see no cache."""
    from neuron_autoport.trace.attention import TRACE_ATTENTION

    layer = kind().eval()
    form, rewritten = read(layer)
    with torch.device("meta"):
        whole = zoo.Whole(kind()).eval()
    whole.layer.__class__ = rewritten
    whole.layer.attention_form, whole.layer.attention_call = form, TRACE_ATTENTION  # type: ignore[assignment]
    trace = trace_model(whole, (torch.empty(2, TOKENS, zoo.WIDTH, device="meta"),))
    (part,) = [p for path, p in trace.walk() if path == "layer"]
    called = [getattr(n.target, "__name__", "") for n in part.graph.nodes]
    assert called.count("attention") == 1
    assert not {"softmax", "matmul", "__matmul__", "bmm", "baddbmm"} & set(called)


@pytest.mark.parametrize("kind", look_alikes.LOOK_ALIKES, ids=lambda k: k.__name__)
def test_look_alikes_are_refused_with_the_operation(kind: type[zoo.Layer]) -> None:
    with pytest.raises(NotPlain) as caught:
        read(kind().eval())
    assert look_alikes.LOOK_ALIKES[kind] in str(caught.value)
    assert re.search(r"attention_look_alikes\.py:\d+:\d+$", str(caught.value))


def source(model_type: str) -> Any:
    return source_of_config(tiny_config(CONFIG_MAPPING[model_type]()), model_type)


# What the papers of these models say, for four heads: Press et al.'s slopes 2^-2, 2^-4, 2^-6, 2^-8.
ALIBI = (0.25, 0.0625, 0.015625, 0.00390625)


@pytest.mark.parametrize(
    ("model_type", "windows", "slopes"),
    [
        ("bloom", {None}, ALIBI),
        ("mpt", {None}, ALIBI),
        ("gpt_neo", {None, 4}, None),
        ("openai-gpt", {None}, None),
    ],
)
def test_models_that_write_out_their_attention(
    model_type: str, windows: set[Any], slopes: Any
) -> None:
    given = source(model_type)
    ready, reasons = call_interface(given)
    assert reasons == {}
    assert ready.prepare is not None
    forms = ready.prepare.reading(given.config).forms.values()  # type: ignore[attr-defined]
    assert {f.window for f in forms} == windows
    assert {f.slopes for f in forms} == {slopes}
    assert read_masks(ready).masks == []  # and nothing else mixes tokens


def test_a_window_of_the_full_model_is_read_from_its_table() -> None:
    """256, as the configuration has it: more than the tokens of a trace."""
    kinds = [[["global", "local"], 1]]
    config = CONFIG_MAPPING["gpt_neo"](num_layers=2, attention_types=kinds)
    ready, _ = call_interface(source_of_config(config, "gpt_neo"))
    forms = ready.prepare.reading(config).forms.values()  # type: ignore[union-attr, attr-defined]
    assert [f.window for f in forms] == [None, 256]


@pytest.mark.serve
def test_the_default_compiled_mode_serves_it(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "window_size": 8}
    other = dict.fromkeys(
        (
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
        )
    )
    kinds = [[["global", "local"], 1]]
    folder = make_model("gpt_neo", tmp_path, **sizes, **other, attention_types=kinds)
    served = serve(folder, prompts())
    assert served.tokens == hugging_face_tokens(folder, prompts())


def test_what_cannot_be_rewritten_is_refused_with_the_reason() -> None:
    given = source("cpmant")
    ready, reasons = call_interface(given)
    assert ready is given
    with pytest.raises(HostError, match="AP411") as caught:
        read_masks(given, reasons)
    assert "looks back at earlier tokens by itself" in caught.value.what
