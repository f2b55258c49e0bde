"""Our own NKI kernels under the Neuron host: they run, in simulation, and the numbers stay Hugging Face's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from tests.hosts.neuron.checkpoints import MODEL, Checkpoint, small, write
from tests.neuron.runner import Generation, generate
from tests.nki_sim.runner import ran

LENGTHS, TOKENS = (5, 40), 2
# One bucket and one place: a prefill and a decode step to warm up, then each prompt by itself.
RUN: dict[str, Any] = {
    "batch": 1, "buckets": (128,), "compile": False, "on_device_sampling": False, "simulate": True,
}  # fmt: skip
STEPS = 2 + len(LENGTHS) * TOKENS
PREFILLS = 1 + len(LENGTHS)


@dataclass(frozen=True)
class Case:
    """A model, and how often one step runs each kernel, counted in its modeling code.

    layer: launches per decoder layer (RoPE: one for the queries and one for the keys). once: beside the
    layers. attention: is prefill attention ours? rotary, style: share of a head that RoPE turns, its pairs.
    """

    changes: dict[str, Any]
    layer: dict[str, int]
    once: dict[str, int]
    attention: bool
    rotary: float = 1.0
    style: str = "half"


# Gemma: four norms a layer, one of which is fused with the sum before it; Gemma 3 norms q and k, too,
# in one kernel with RoPE.
# Cohere: one norm and both branches from it. GPT-NeoX: two norms, also with parallel branches.
CASES = {
    "gemma2": Case({}, {"rms_norm": 3, "add_rms_norm": 1, "rope": 2}, {"rms_norm": 1}, True),
    "gemma3_text": Case(
        {"head_dim": 256},
        {"rms_norm": 3, "add_rms_norm": 1, "qk_norm_rope": 1},
        {"rms_norm": 1},
        True,
    ),
    "cohere": Case({}, {"layer_norm": 1, "rope": 2}, {"layer_norm": 1}, False, style="interleaved"),
    "gpt_neox": Case({}, {"layer_norm": 2, "rope": 2}, {"layer_norm": 1}, False, rotary=0.25),
}


def expected(case: Case, layers: int) -> dict[str, int]:
    """Launches of a whole run by kernel."""
    names = case.layer.keys() | case.once.keys()
    found = {
        f"{n}_kernel": STEPS * (case.layer.get(n, 0) * layers + case.once.get(n, 0)) for n in names
    }
    if case.attention:
        found["softcap_attention_kernel"] = PREFILLS * layers
    return found


def simulated(saved: Checkpoint, case: Case, **options: Any) -> Generation:
    """A run through the runner with kernels on; every kernel ran as often as the model's code says."""
    ran.clear()
    made = generate(MODEL, saved.folder, saved.prompts(*LENGTHS), TOKENS, **RUN, **options)
    assert dict(ran) == expected(case, saved.config.num_hidden_layers)
    return made


@pytest.mark.parametrize("model_type", CASES)
def test_float32_equals_hugging_face(model_type: str, tmp_path: Path) -> None:
    case = CASES[model_type]
    saved = write(tmp_path, small(model_type, **case.changes))
    made = simulated(saved, case)
    for prompt, tokens, got in zip(saved.prompts(*LENGTHS), made.tokens, made.logits, strict=True):
        want = saved.logits(prompt, TOKENS)
        assert got is not None
        assert tokens == [int(row.argmax()) for row in want]
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    for call in made.log.of("rope_kernel"):
        assert call.shapes["cos"][-1] == case.rotary * call.shapes["x"][-1]
        assert call.constants["style"] == case.style


@pytest.mark.parametrize("model_type", CASES)
def test_bfloat16_is_no_further_from_float32_than_hugging_face(
    model_type: str, tmp_path: Path
) -> None:
    case = CASES[model_type]
    saved = write(tmp_path, small(model_type, **case.changes))
    made = simulated(saved, case, dtype=torch.bfloat16)
    half = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, attn_implementation="eager"
    )
    ours = theirs = 0.0
    for prompt, got in zip(saved.prompts(*LENGTHS), made.logits, strict=True):
        exact = saved.logits(prompt, 1)[0]
        with torch.no_grad():
            other = half(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1].float()
        assert got is not None
        ours += float((got[0] - exact).square().mean())
        theirs += float((other - exact).square().mean())
    assert 0.3 < (ours / theirs) ** 0.5 < 1.2


def test_the_plan_names_the_kernels_and_their_limits() -> None:
    config = small("gemma2")
    with torch.device("meta"):
        plan = NeuronTransformersForCausalLM.from_configs(config).host_plan
    own = {(c.phase, c.call): c for c in plan.choices if c.limits}
    for phase in ("prefill", "decode"):
        for name in ("rms_norm", "add_rms_norm", "rope"):
            choice = own[phase, name]
            assert choice.runs == f"kernel: neuron_autoport.{name}"
            assert "x.dtype in (float32, bfloat16, float16)" in choice.limits
    choice = own["prefill", "softcap_attention"]
    assert choice.runs == "kernel: neuron_autoport.softcap_attention"
    assert "q.shape[-1] <= 1024" in choice.limits
    runs = {(c.phase, c.call): c.runs for c in plan.choices}
    assert runs["prefill", "flash_attention"].startswith("torch: scores are soft-capped")


def test_the_plan_says_why_a_kernel_does_not_run() -> None:
    config = small("gemma2", head_dim=1026)
    with torch.device("meta"):
        plan = NeuronTransformersForCausalLM.from_configs(config).host_plan
    (choice,) = [c for c in plan.choices if c.call == "softcap_attention"]
    assert choice.runs == (
        "torch: q.shape[-1] is 1026, more than 1024: sixteen tiles of queries, turned, are held in "
        "SBUF at once"
    )
