"""How the ranks share a class, read from its graph: held to hand-made cases and to transformers' own plans."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neuron_autoport.hosts.vllm.parallel import (
    Sharing,
    pipeline_plan,
    share_linears,
    sharing_of,
)
from neuron_autoport.models.tiny import tiny_config
from neuron_autoport.port import Port, port_model
from neuron_autoport.rules.library import load_rules


@cache
def ported(model_type: str, with_rules: bool) -> Port:
    config = tiny_config(CONFIG_MAPPING[model_type]())
    return port_model(config, load_rules() if with_rules else ())


def sharing(model_type: str, path: str, *, with_rules: bool) -> tuple[Sharing, dict[str, str]]:
    """Of one module, as if the model declared no plan."""
    port = ported(model_type, with_rules)
    plan, module = port.where[path], port.model.get_submodule(path)
    found = sharing_of(plan, module, lambda name: False)
    return found, share_linears(plan, module, found)


ATTENTION = "model.layers.0.self_attn"


def test_sites_and_heads_of_llama() -> None:
    found, styles = sharing("llama", ATTENTION, with_rules=True)
    assert found == Sharing(None, by_heads=True)
    assert styles == {}  # all four projections are in sites


def test_a_norm_over_all_heads_gets_them_gathered() -> None:
    found, _ = sharing("olmo2", ATTENTION, with_rules=True)
    assert found == Sharing(None, gathers=("q_norm", "k_norm"), by_heads=True)
    per_head, _ = sharing("qwen3", ATTENTION, with_rules=True)
    assert per_head == Sharing(None, by_heads=True)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma2", "granite", "cohere", "mixtral"])
def test_attention_without_sites_is_shared_as_transformers_declares(model_type: str) -> None:
    """The plan that the configuration class declares is the independent source."""
    found, styles = sharing(model_type, ATTENTION, with_rules=False)
    assert found.whole is None and found.by_heads
    declared = CONFIG_MAPPING[model_type].base_model_tp_plan
    expected = {
        name.rpartition(".")[2]: style
        for name, style in declared.items()
        if re.fullmatch(r"layers\.\*\.self_attn\.\w_proj", name)
    }
    assert styles == expected


def test_latent_attention_shares_what_unfolds_into_heads() -> None:
    found, styles = sharing("deepseek_v3", ATTENTION, with_rules=True)
    assert found.columns == ("kv_b_proj", "q_b_proj") and found.by_heads
    assert styles == {"q_b_proj": "colwise", "kv_b_proj": "colwise"}


def test_heads_that_are_paired_with_others_are_not_shared() -> None:
    """Differential attention takes the first and the second half of all heads; a rank has neither."""
    found, styles = sharing("diffllama", ATTENTION, with_rules=True)
    assert found == Sharing("`slice` takes, joins or repeats some of the heads")
    assert set(styles.values()) <= {"replicate"}


def test_what_cannot_be_shared_is_computed_whole() -> None:
    """A graph in which nothing makes heads of the queries."""
    port = ported("llama", True)
    plan, module = port.where[ATTENTION], port.model.get_submodule(ATTENTION)
    sites = tuple(s for s in plan.sites if s.rule.name == "o_proj")
    assert len(sites) == 1
    graph = replace(plan.graph, ops=tuple(op for op in plan.graph.ops if op.target != "q_proj"))
    found = sharing_of(replace(plan, sites=sites, graph=graph), module, lambda name: False)
    assert found == Sharing("its keys are shared by head, its queries are not")
    assert set(share_linears(replace(plan, sites=sites), module, found).values()) == {"replicate"}


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "olmo2", "mixtral", "phi3", "glm4"])
def test_the_parts_of_a_pipeline_are_those_that_transformers_declares(model_type: str) -> None:
    port = ported(model_type, False)
    base: Any = port.model.get_submodule(port.base)
    assert list(pipeline_plan(port.where[port.base].trace, base)) == list(
        CONFIG_MAPPING[model_type].base_model_pp_plan
    )


def test_a_model_without_a_pipeline_plan_gets_one_in_the_order_it_runs() -> None:
    port = ported("opt", False)
    decoder = f"{port.base}.decoder"
    assert not port.model.supports_pp_plan
    parts = list(pipeline_plan(port.where[decoder].trace, port.model.get_submodule(decoder)))
    assert parts.index("embed_tokens") < parts.index("layers") < parts.index("final_layer_norm")
