"""Mixtures of experts in NF functions: which calls, that they are right on one and two ranks, and why not elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_autoport.hosts.neuron.assembly import Assembly, Ported, Without
from neuron_autoport.hosts.neuron.build import host_source, port_of
from neuron_autoport.hosts.neuron.engine import Ranks
from neuron_autoport.hosts.neuron.model import NeuronTransformersForCausalLM
from neuron_autoport.hosts.neuron.moe_blocks import decode_fits
from neuron_autoport.hosts.neuron.moe_form import norms_apart, read_forms
from neuron_autoport.hosts.neuron.moe_sizes import mapping_limit
from neuron_autoport.hosts.neuron.options import Served
from neuron_autoport.hosts.neuron.probe import read_layers
from neuron_autoport.hosts.neuron.selftest import Meeting
from neuron_autoport.port import port_model
from neuron_autoport.rules.sources import load_library
from tests.hosts.neuron.checkpoints import MODEL, Checkpoint, small, write
from tests.hosts.neuron.test_families import check_bfloat16
from tests.neuron.runner import Generation, generate

# Sizes that the kernels take, also on two ranks.
FITS: dict[str, dict[str, Any]] = {
    "mixtral": {"hidden_size": 256, "intermediate_size": 256},
    "qwen3_moe": {"hidden_size": 256, "moe_intermediate_size": 256},
    "gpt_oss": {"hidden_size": 256, "intermediate_size": 256},
    "granitemoe": {"hidden_size": 256, "intermediate_size": 256},
}
RUN: dict[str, Any] = {"compile": False, "batch": 2, "buckets": (128,), "seq_buckets": (2,)}
BLOCKWISE = ("build_blockwise_mapping", "moe_cte")


def calls(made: Generation, phase: str, steps: int) -> dict[str, float]:
    """Calls of each expert function per step of a phase."""
    found = made.log.functions(phase)
    names = ("router", *BLOCKWISE, "moe_block_tkg")
    return {name: found[name] / steps for name in names if found[name]}


def agree(made: Generation, saved: Checkpoint, prompts: list[list[int]]) -> None:
    """Tokens and logits are those of Hugging Face."""
    for prompt, tokens, got in zip(prompts, made.tokens, made.logits, strict=True):
        want = saved.logits(prompt, 3)
        assert tokens == [int(row.argmax()) for row in want]
        assert got is not None and (got - want).abs().max() <= 1e-4 * want.abs().max()


@pytest.mark.parametrize(
    ("model_type", "routes"),
    # Qwen3-MoE's weights are a softmax over all experts, not renormalized: NF.router has no such order.
    [("mixtral", True), ("qwen3_moe", False), ("gpt_oss", True), ("granitemoe", True)],
)
def test_both_phases_go_through_nf(model_type: str, routes: bool, tmp_path: Path) -> None:
    saved = write(tmp_path, small(model_type, **FITS[model_type]))
    prompts = saved.prompts(6, 41)
    made = generate(MODEL, tmp_path, prompts, 3, max_logprobs=1, **RUN)
    agree(made, saved, prompts)
    layers = saved.config.num_hidden_layers
    prefill = {**dict.fromkeys(BLOCKWISE, layers), **({"router": layers} if routes else {})}
    assert calls(made, "prefill", len(prompts)) == prefill
    assert set(calls(made, "decode", 1)) == {"moe_block_tkg"}
    verdicts = made.log.verdicts()
    for phase, name in (("prefill", "moe_cte"), ("decode", "moe_block_tkg")):
        assert verdicts[phase, name] == {"kernel"}
    assert verdicts["prefill", "build_blockwise_mapping"] == {"kernel"}


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("by_expert", [False, True], ids=["columns", "experts"])
def test_two_ranks(model_type: str, by_expert: bool, tmp_path: Path) -> None:
    """A part of each expert on each rank, or some of the experts; the biases once, not twice."""
    saved = write(tmp_path, small(model_type, **FITS[model_type]))
    prompts = saved.prompts(6, 41)
    options = {"expert_parallel": True, "ep_degree": 2} if by_expert else {}
    made = generate(MODEL, tmp_path, prompts, 3, tp=2, max_logprobs=1, **RUN, **options)
    agree(made, saved, prompts)
    experts = saved.config.num_local_experts
    share = (experts // 2, 256) if by_expert else (experts, 128)
    shapes = {c.shapes["expert_gate_up_weights"] for c in made.log.of("moe_block_tkg")}
    assert shapes == {(share[0], 256, 2, share[1])}
    assert ("get_local_expert_affinities" in made.log.functions("prefill")) == by_expert


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_bfloat16_is_no_further_from_float32(model_type: str, tmp_path: Path) -> None:
    """Decode in one call; "up + 1" in the bias, in bfloat16 too."""
    check_bfloat16(write(tmp_path, small(model_type, **FITS[model_type])), model_type)


def test_compiled_whole(tmp_path: Path) -> None:
    saved = write(tmp_path, small("mixtral", **FITS["mixtral"]))
    prompts = saved.prompts(6)
    made = generate(MODEL, tmp_path, prompts, 3, batch=1, buckets=(128,))
    assert made.tokens == [saved.greedy(p, 3) for p in prompts]
    layers = saved.config.num_hidden_layers
    for graph in made.log.graphs:
        decode = "decode" in graph.step
        assert graph.functions["moe_block_tkg"] == (layers if decode else 0)
        assert graph.functions["moe_cte"] == (0 if decode else layers)


def assemble(model_type: str, ranks: int = 1, by_expert: bool = False, **changes: Any) -> Any:
    """A meta model as rank 0 of a group, without proofs."""
    source, library = host_source(small(model_type, **changes)), load_library()
    port = norms_apart(port_model(source, library), library, decode_fits(ranks, by_expert))
    ported: Ported = port_of(source, port, read_layers(source))
    group = Ranks(Meeting(ranks).member(0)) if ranks > 1 else Ranks()
    made = Assembly(ported, group, torch.float32, Without(), Served(by_expert))
    return made.make(NeuronTransformersForCausalLM, None)


def runs(model: Any) -> dict[tuple[str, str], str]:
    return {(c.phase, c.call): c.runs for c in model.host_plan.choices}


def test_the_plan_says_kernel() -> None:
    found = runs(assemble("mixtral", **FITS["mixtral"]))
    assert found["prefill", "moe_cte"] == found["decode", "moe_block_tkg"] == "kernel"
    assert found["prefill", "router"] == (
        "torch: the plugin's router kernel is switched off in this release"
    )


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (("decode", "moe_block_tkg"), "hidden size 64 is no multiple of 256"),
        (("prefill", "moe_cte"), "columns per rank, the kernel takes"),
    ],
)
def test_the_plan_says_which_size_does_not_fit(call: tuple[str, str], reason: str) -> None:
    assert reason in runs(assemble("mixtral"))[call]


@pytest.mark.parametrize(
    ("model_type", "router", "decode"),
    [
        ("qwen3_moe", "always renormalizes softmax", None),
        ("qwen2_moe", "always renormalizes softmax", "a shared expert"),
        ("qwen3_next", "a shared expert in its own code", "a shared expert"),
        ("deepseek_v3", "a bias that only chooses", "a bias that only chooses"),
        ("minimax", None, "more reads module(post_attention_layernorm)"),
        ("gpt_oss", None, None),
    ],
)
def test_the_form_says_why_not(model_type: str, router: str | None, decode: str | None) -> None:
    forms, _ = read_forms(port_model(host_source(small(model_type)), load_library()))
    form = next(iter(forms.values()))
    for wanted, got in ((router, form.no_router), (decode, form.no_decode)):
        assert got is None if wanted is None else got is not None and wanted in got


def test_experts_on_copies_of_all_tokens_stay_in_torch() -> None:
    _, reasons = read_forms(port_model(host_source(small("llama4_text")), load_library()))
    assert set(reasons.values()) == {"the experts run on weighted copies of all tokens"}


def test_weights_in_the_layout_of_nf(tmp_path: Path) -> None:
    """Interleaved gate and up are taken apart, what is added to up is in its bias, once."""
    saved = write(tmp_path, small("gpt_oss", **FITS["gpt_oss"]))
    model = NeuronTransformersForCausalLM.from_configs(saved.config)
    model.load_weights(str(tmp_path), "cpu")
    theirs: Any = saved.model.model.layers[1].mlp.experts
    block: Any = model.model.get_submodule("layers.1.mlp")
    packed = theirs.gate_up_proj.detach()
    assert torch.equal(block.experts.nf_gate_up[:, :, 0], packed[..., 0::2])
    assert torch.equal(block.experts.nf_gate_up[:, :, 1], packed[..., 1::2])
    bias = theirs.gate_up_proj_bias.detach()
    assert torch.equal(block.experts.nf_gate_up_bias[:, 0], bias[..., 0::2])
    assert torch.equal(block.experts.nf_gate_up_bias[:, 1], bias[..., 1::2] + 1)
    assert torch.equal(block.experts.nf_down, theirs.down_proj.detach())
    router: Any = saved.model.model.layers[1].mlp.router
    assert torch.equal(block.nf_router, router.weight.detach().T)
    names = dict(model.named_parameters())
    assert not any(n.endswith(("gate_up_proj", "router.weight")) for n in names), (
        "nothing is held twice"
    )


@pytest.mark.parametrize("tokens", [1, 15, 16, 100, 128, 256, 384, 640, 2048, 2176, 16384, 20000])
@pytest.mark.parametrize("experts", [7, 8])
def test_limits_of_the_mapping_are_those_of_the_double(tokens: int, experts: int) -> None:
    from tests.neuron.double.args import Args
    from tests.neuron.double.contract import FUNCTIONS, defaults
    from tests.neuron.double.moe_blockwise import _check_mapping

    rows = FUNCTIONS["build_blockwise_mapping"]["parameters"]
    given = dict.fromkeys(name for name, _ in rows) | defaults(rows)
    given |= {
        "expert_affinities": torch.zeros(tokens, experts), "num_local_experts": experts,
        "num_experts_per_token": 2, "block_size": 128,
    }  # fmt: skip
    verdict = _check_mapping(Args("build_blockwise_mapping", given))
    assert (mapping_limit(experts, tokens) is None) == (verdict == "kernel")
