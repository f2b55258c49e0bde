"""Weights: units cover a model, layer by layer gives what the whole model gives, and memory is estimated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from neuron_autoport.accuracy.candidate import Builder, Candidate
from neuron_autoport.accuracy.level2 import judge_prompts
from neuron_autoport.accuracy.modules import judge_modules
from neuron_autoport.accuracy.prompts import load_prompts
from neuron_autoport.accuracy.weights import estimate_memory, load_weights, units_of
from neuron_autoport.errors import ModelError
from neuron_autoport.models.build import meta_model, real_model
from neuron_autoport.models.source import ModelSource, load_model_config
from neuron_autoport.port import port_model
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rules.library import load_rules
from tests.helpers import small_config


def saved(folder: Path, name: str, **more: object) -> ModelSource:
    config = small_config(name, **more)
    model = real_model(config)
    model.save_pretrained(folder)
    return load_model_config(str(folder))


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "gemma3_text"])
def test_units_hold_every_parameter_once(name: str) -> None:
    model = meta_model(small_config(name))
    units = units_of(model)
    assert sum(u.rpartition(".")[2].isdigit() for u in units) == 2
    named = dict(model.named_parameters(remove_duplicate=False))
    assert all(sum(n.startswith(f"{u}.") for u in units) == 1 for n in named)


@pytest.mark.parametrize("tied", [True, False])
def test_layer_by_layer_is_the_same(tmp_path: Path, tied: bool) -> None:
    source = saved(tmp_path, "llama", tie_word_embeddings=tied)
    rules = load_rules()
    port = port_model(source, rules)
    candidate = Candidate(port, generate(port.plans, "saved"))
    ids = torch.randint(3, 96, (2, 24), generator=torch.Generator().manual_seed(1))
    prompts = load_prompts(source, None, count=3, length=16)
    found = []
    for layered in (False, True):
        builder = Builder(load_weights(source, layered=layered), torch.bfloat16)
        assert builder.weights.layered is layered
        if layered:  # nothing is in memory but what is in no unit
            assert all(p.is_meta for p in builder.weights.model.parameters())
        level3 = judge_modules(builder, candidate, ids)
        level2 = judge_prompts(builder, candidate, prompts)
        assert level3.passed and level2.passed
        found.append((
            [(m.path, m.inputs, m.figures) for m in level3.modules],
            [(d.path, d.ported, d.reference) for d in level3.depth],
            [(m.mode, m.r, m.coefficient) for m in level2.modes],
            [c.figures for c in level2.cache],
        ))  # fmt: skip
    assert found[0] == found[1]


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """Reference and truth against a model loaded by transformers itself."""
    source = saved(tmp_path, "gemma3_text")
    builder = Builder(load_weights(source), torch.bfloat16)
    ids = torch.arange(3, 15)[None]
    for dtype, model in ((torch.float32, builder.model_fp32()), (torch.bfloat16, builder.model())):
        theirs = AutoModelForCausalLM.from_pretrained(
            tmp_path, dtype=dtype, attn_implementation="eager"
        )
        with torch.no_grad():
            ours, expected = (m(input_ids=ids).logits for m in (model, theirs.eval()))
        assert torch.equal(ours, expected)


def test_memory_by_hand() -> None:
    config = small_config("llama")
    memory = estimate_memory(config, torch.bfloat16, 100, limit=10**9)
    # Embedding and head 96 x 64; layer: q, o 64 x 64, k, v 64 x 32, three of 64 x 96, two norms; last norm.
    count = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 64
    assert memory.weights == 4 * count
    assert memory.whole - memory.layered == 8 * count and memory.fits
    assert not estimate_memory(config, torch.bfloat16, 100, limit=10**6).fits
    wide = estimate_memory(config, torch.float32, 100, limit=10**9)
    assert wide.whole - wide.layered == 16 * count


def test_a_folder_without_weights(tmp_path: Path) -> None:
    small_config("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="weights cannot be loaded"):
        load_weights(load_model_config(str(tmp_path)))
