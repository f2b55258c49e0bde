"""Tiny models of nine architectures through vLLM's engine: greedy tokens equal Hugging Face eager.

float32, five prompts of different lengths in one batch, the longest longer than every window.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.hosts.vllm.serving import MODELS, hugging_face_tokens, make_model, prompts, serve

pytestmark = pytest.mark.serve

# Sites by hand: per layer q/k/v, output projection, MLP, RoPE, two norms (Gemma 3 four and two per head) and
# the residual sum before the second norm, and the final norm. OPT has no RoPE and an MLP with ReLU.
SITES = {
    "llama": 3 * 7 + 1,
    "qwen2": 3 * 7 + 1,
    "qwen3": 3 * 9 + 1,
    "mistral": 3 * 7 + 1,
    "gemma3_text": 6 * 11 + 1,
    "granite": 3 * 7 + 1,
    "phi3": 3 * 7 + 1,
    "stablelm": 3 * 6 + 1,
    "opt": 3 * 4 + 1,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def model_of(model_type: str, folders: Path) -> Path:
    folder = folders / model_type
    return folder if folder.exists() else make_model(model_type, folders)


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_greedy_tokens_equal_hugging_face(model_type: str, folders: Path) -> None:
    folder = model_of(model_type, folders)
    served = serve(folder, prompts(), "--eager")
    assert served.tokens == hugging_face_tokens(folder, prompts())
    assert served.fused == (SITES[model_type], SITES[model_type])
    assert "the logits were not compared" not in served.log  # proved whole, not class by class


@pytest.mark.parametrize("model_type", ["gemma3_text", "llama"])
def test_the_default_compiled_mode_gives_the_same_tokens(model_type: str, folders: Path) -> None:
    folder = model_of(model_type, folders)
    served = serve(folder, prompts())
    assert served.tokens == hugging_face_tokens(folder, prompts())


@pytest.mark.parametrize("model_type", ["qwen2", "phi3"])
def test_two_ranks_give_the_tokens_of_one(model_type: str, folders: Path) -> None:
    folder = model_of(model_type, folders)
    served = serve(folder, prompts(), "--eager", "--tp", "2")
    assert served.tokens == hugging_face_tokens(folder, prompts())


def test_granite_logits_are_divided_as_its_graph_says(folders: Path) -> None:
    """vLLM's own backend drops `logits_scaling`; greedy tokens would not show it."""
    folder = model_of("granite", folders)
    asked = prompts()[1:3]
    served = serve(folder, asked, "--eager", "--tokens", "1", "--logprobs", "5")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for ids, steps in zip(asked, served.logprobs, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        expected = logits.log_softmax(-1)
        for token, logprob in steps[0].items():
            assert logprob == pytest.approx(expected[int(token)].item(), abs=1e-3)


WRONG = """
rule: {name}
summary: wrong on purpose
role: gated_mlp
match: y = down(act(gate(x)) * up(x))
where:
  gate, up, down: linear
  act: {{silu: NF.ActFnType.SiLU}}
shard: {{gate: column, up: column, down: row}}
replace: |
  y = NF.mlp(x.flatten(0, -2), {gate}.weight, {up}.weight, down.weight, act_fn=act).unflatten(0, x.shape[:-1])
"""


def test_a_wrong_rule_is_dropped_and_the_model_still_serves_right(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gated_mlp.yaml").write_text(WRONG.format(name="gated_mlp", gate="up", up="gate"))
    monkeypatch.setenv("AUTOPORT_RULES", str(tmp_path))
    folder = model_of("llama", folders)
    served = serve(folder, prompts(), "--eager")
    assert served.tokens == hugging_face_tokens(folder, prompts())
    # `stacked_pair` and `act_and_mul` stand in for the rule that went
    assert served.fused == (SITES["llama"] + 3, SITES["llama"] + 6)
    assert "LlamaMLP: gated_mlp dropped, AP701" in served.log
