"""A scale inside the embedding module survives the rewrite, with its rounding."""

from __future__ import annotations

from typing import Any

import torch

from neuron_autoport.models.build import real_model
from neuron_autoport.port import port_model
from neuron_autoport.rewrite.emit import generate
from neuron_autoport.rewrite.install import install_all
from neuron_autoport.rules.library import load_rules
from tests.helpers import small_config


def test_the_embedding_keeps_its_scale() -> None:
    """Gemma 3: rows of the weight times sqrt(H), which is rounded to bfloat16 first, as transformers does."""
    config = small_config("gemma3_text", hidden_size=48)  # 6.9282 is 6.9375 in bfloat16
    port = port_model(config, load_rules())
    model: Any = real_model(config, dtype=torch.bfloat16)
    install_all(model, port.where, generate(port.plans, "small gemma3_text"))
    ids, seen = torch.arange(24).reshape(2, 12) % 96, []
    model.model.embed_tokens.register_forward_hook(lambda _, args, out: seen.append(out))
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    rows = model.model.embed_tokens.weight[ids]
    wanted = rows * torch.tensor(48**0.5).to(torch.bfloat16)
    assert torch.equal(seen[0], wanted)
    assert not torch.equal(wanted, (rows.float() * 48**0.5).to(torch.bfloat16))
    classes = {plan.trace.module_class for plan in port.plans}
    assert type(model.model.layers[0]) not in classes  # it is the rewritten one
