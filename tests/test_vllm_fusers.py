"""What vLLM's fusers match, by its own functions, and how we tell what we do not cover."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.vllm_fusers import not_covered, their_sites
from neuron_autoport.port import Port, port_model, replan
from neuron_autoport.rules.library import load_rules
from tests.helpers import small_config
from tests.trace.routers import small_config as routers_config

pytest.importorskip("vllm")


def port_of(model_type: str, *names: str, **fields: object) -> Port:
    rules = [r for r in load_rules() if not names or r.name in names]
    return port_model(small_config(model_type, **fields), rules)


def kinds(port: Port) -> dict[str, int]:
    return dict(Counter(site.kind for site in their_sites(port.model, port.base)))


def test_their_sites() -> None:
    """Two layers: in each q/k/v, gate/up and two norms, and one norm after them."""
    port = port_of("llama")
    sites = their_sites(port.model, port.base)
    assert kinds(port) == {"qkv": 2, "gate_up": 2, "norm": 5}
    qkv = next(s for s in sites if s.kind == "qkv")
    assert (qkv.class_name, qkv.path) == ("LlamaAttention", "model.layers.0.self_attn")
    assert qkv.parts == tuple(f"model.layers.0.self_attn.{n}_proj" for n in "qkv")


def test_layer_norms_and_experts() -> None:
    assert kinds(port_of("gpt2"))["layer_norm"] == 5
    assert kinds(port_of("mixtral"))["moe"] == 2
    # Phi-3 packs gate and up, which no fuser of theirs knows.
    assert "gate_up" not in kinds(port_of("phi3"))


def test_what_is_not_covered() -> None:
    port = port_of("llama", "qkv_proj", "gated_mlp")
    missing = not_covered(port, their_sites(port.model, port.base))
    assert [(m.kind, m.class_name, m.count) for m in missing] == [("norm", "LlamaRMSNorm", 5)]
    assert missing[0].example == "model.layers.0.input_layernorm"
    assert missing[0].reasons == ("no rule came near",)


def test_a_site_that_is_not_used_covers_nothing() -> None:
    rules = [r for r in load_rules() if r.name == "gated_mlp"]
    port = port_of("llama", "gated_mlp")
    without = replan(port, rules, frozenset({"LlamaMLP:gated_mlp"}))
    found = {m.kind: m for m in not_covered(without, their_sites(without.model, without.base))}
    assert found["gate_up"].count == 2
    assert found["gate_up"].reasons == ("gated_mlp: not proved",)
    covered = {m.kind for m in not_covered(port, their_sites(port.model, port.base))}
    assert covered == {"qkv", "norm"}


def test_experts_that_vllms_layer_has_not() -> None:
    """Four of its twelve experts hand on their input; vLLM's layer gets the eight that have weights."""
    config = routers_config("longcat_flash")
    port = port_model(config, load_rules())
    (missing,) = not_covered(port, their_sites(port.model, port.base))
    assert (missing.kind, missing.class_name) == ("moe", "LongcatFlashMoE")
    assert missing.beyond == "the router chooses among 12 experts, 8 of which have weights"
    assert "not understood" in missing.reasons[0]


@pytest.mark.parametrize(
    ("model_type", "class_name"),
    [
        ("deepseek_v4", "DeepseekV4SparseMoeBlock"),
        ("nemotron_h", "NemotronHMoE"),
        ("zaya", "ZayaSparseMoeBlock"),
        ("llama4_text", "Llama4TextMoe"),
    ],
)
def test_experts_of_all_kinds_are_covered(model_type: str, class_name: str) -> None:
    port = port_model(routers_config(model_type), load_rules())
    theirs = their_sites(port.model, port.base)
    assert class_name in {t.class_name for t in theirs if t.kind == "moe"}
    assert not_covered(port, theirs) == []
