"""The double's expert functions against Hugging Face's own modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GptOssConfig, MixtralConfig, Qwen3MoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from tests.neuron.double import ContractError, State
from tests.neuron.double.moe_route import mapping_blocks
from tests.neuron.test_double_attention import NF, enum, rms

Draw = Callable[..., Tensor]
TOKENS, HIDDEN, INNER, EXPERTS, TOP = 24, 32, 16, 4, 2
ORDER = "PRENORM_LINEAR_ACT_TOPK_RENORM_SCATTER"


def close(got: Tensor, want: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def filled(module: nn.Module) -> Any:
    """Random weights, eager experts."""
    torch.manual_seed(2)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


def eager(config: Any) -> Any:
    config._experts_implementation = "eager"
    return config


def mixtral() -> Any:
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": EXPERTS}
    return filled(MixtralSparseMoeBlock(eager(MixtralConfig(**sizes, num_experts_per_tok=TOP))))


def qwen(renormalize: bool) -> Any:
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN,
        moe_intermediate_size=INNER,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP,
        norm_topk_prob=renormalize,
    )
    return filled(Qwen3MoeSparseMoeBlock(eager(config)))


def plugin_experts(experts: Any) -> tuple[Tensor, Tensor]:
    """Hugging Face's [E, 2I, H] and [E, H, I] as [E, H, 2, I] and [E, I, H]."""
    gate_up = experts.gate_up_proj.detach().transpose(1, 2)
    down = experts.down_proj.detach().transpose(1, 2)
    return gate_up.unflatten(2, (2, -1)).contiguous(), down.contiguous()


def prefill(x: Tensor, affinities: Tensor, weights: tuple[Tensor, Tensor], **given: Any) -> Any:
    """Mapping and experts of a prefill step, block size 16."""
    from nkilib.core.moe.moe_cte.moe_cte import MoECTEImplementation

    packed = NF().build_blockwise_mapping(affinities, EXPERTS, TOP, 16, None)
    return NF().moe_cte(
        x,
        packed[0],
        *weights,
        packed[1],
        packed[2],
        16,
        MoECTEImplementation.shard_on_block,
        conditions=packed[3],
        skip_token=True,
        **given,
    )


def test_mixtral_in_prefill(double: State, draw: Draw) -> None:
    """router, build_blockwise_mapping and moe_cte; the router over chosen or over all logits."""
    from vllm_neuron.functional.moe.router import RouterComputationOrder

    block, x = mixtral(), draw(TOKENS, HIDDEN)
    want = block(x[None])[0]
    router = block.gate.weight.detach().T
    for order in (RouterComputationOrder[ORDER], RouterComputationOrder(100)):
        affinities = NF().router(x, router, TOP, router_computation_order=order)
        close(prefill(x, affinities, plugin_experts(block.experts)), want, 1e-4)


def test_qwen3_moe_without_renormalization_is_not_a_router(double: State, draw: Draw) -> None:
    """No order of the router gives plain probabilities: the double shows the difference."""
    from vllm_neuron.functional.moe.router import RouterComputationOrder

    block, x = qwen(renormalize=False), draw(TOKENS, HIDDEN)
    _, weights, chosen = block.gate(x)
    want = torch.zeros(TOKENS, EXPERTS).scatter(1, chosen, weights)
    for order in RouterComputationOrder:
        router = block.gate.weight.detach().T
        got = NF().router(x, router, TOP, router_computation_order=order)
        assert (got != 0).equal(want != 0)
        assert (got - want).abs().max() > 0.01


def gpt_oss() -> tuple[Any, Any]:
    config = GptOssConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP,
    )
    return filled(GptOssTopKRouter(eager(config))), filled(GptOssExperts(config))


def test_gpt_oss_in_prefill(double: State, draw: Draw) -> None:
    """Router bias, expert biases, clamps and Swish with 1.702; "up + 1" lives in bias and clamp."""
    router, experts = gpt_oss()
    x = draw(TOKENS, HIDDEN) * 3
    _, weights, chosen = router(x)
    want = experts(x, chosen, weights)
    affinities = NF().router(x, router.weight.detach().T, TOP, router.bias.detach())
    gate_up = experts.gate_up_proj.detach().unflatten(2, (-1, 2)).transpose(2, 3).contiguous()
    bias = experts.gate_up_proj_bias.detach().unflatten(1, (-1, 2)).transpose(1, 2).contiguous()
    bias[:, 1] += 1
    got = prefill(
        x,
        affinities,
        (gate_up, experts.down_proj.detach()),
        gate_and_up_proj_bias=bias,
        down_proj_bias=experts.down_proj_bias.detach()[:, None],
        activation_function=enum("ActFnType").Swish,
        gate_clamp_upper_limit=7.0,
        up_clamp_lower_limit=-6.0,
        up_clamp_upper_limit=8.0,
    )
    close(got, want, 1e-4)


@pytest.mark.parametrize("renormalize", [True, False])
def test_qwen3_moe_in_decode(double: State, draw: Draw, renormalize: bool) -> None:
    """moe_block_tkg expresses both: activation before the choice, renormalized or not."""
    block, x, gamma = qwen(renormalize), draw(3, 1, HIDDEN), draw(1, HIDDEN)
    got, logits = NF().moe_block_tkg(
        x,
        gamma,
        block.gate.weight.detach().T.contiguous(),
        *plugin_experts(block.experts),
        top_k=TOP,
        eps=1e-5,
        router_act_fn=enum("RouterActFnType").SOFTMAX,
        norm_topk_prob=renormalize,
        expert_affinities_scaling_mode=enum("ExpertAffinityScaleMode").POST_SCALE,
    )
    n = rms(x, gamma[0], 1e-5)
    close(got, block(n)[:, 0], 1e-4)
    close(logits, block.gate(n)[0], 1e-4)


def test_local_experts_add_up(double: State, draw: Draw) -> None:
    """Expert parallelism: two ranks' local experts sum to the whole."""
    block, x = mixtral(), draw(3, HIDDEN)
    gate_up, down = plugin_experts(block.experts)
    router = block.gate.weight.detach().T.contiguous()
    common: dict[str, Any] = {
        "top_k": TOP,
        "router_act_fn": enum("RouterActFnType").SOFTMAX,
        "router_pre_norm": False,
        "expert_affinities_scaling_mode": enum("ExpertAffinityScaleMode").POST_SCALE,
        "skip_router_logits": True,
    }
    ones = torch.ones(1, HIDDEN)
    parts = [
        NF().moe_block_tkg(
            x,
            ones,
            router,
            gate_up[at : at + 2].contiguous(),
            down[at : at + 2].contiguous(),
            torch.tensor([[at // 2]], dtype=torch.int32),
            **common,
        )
        for at in (0, 2)
    ]
    n = rms(x, ones[0], 1e-6)
    close(parts[0] + parts[1], block(n[None])[0], 1e-4)
    indices = NF().calculate_local_expert_indices(1, 2, EXPERTS, "cpu")
    assert indices.tolist() == [2, 3]
    affinities = draw(5, EXPERTS)
    assert torch.equal(NF().get_local_expert_affinities(affinities, indices), affinities[:, 2:])
    with pytest.raises(ValueError, match="does not divide"):
        NF().validate_expert_parallelism_config(3, 4, 6)


def test_the_mapping_by_hand(double: State) -> None:
    """Three tokens, two experts, blocks of two: expert 0 has tokens 0 and 2, expert 1 token 1."""
    affinities = torch.tensor([[0.5, 0.0], [0.0, 0.25], [1.0, 0.0]])
    mask = torch.tensor([True, True, False])
    flat, ids, owner, used = NF().build_blockwise_mapping(
        affinities, 2, 1, 2, None, padding_mask=mask
    )
    assert mapping_blocks(3, 2, 1, 2) == 2
    assert flat.flatten().tolist() == [0.5, 0.0, 0.0, 0.25, 0.0, 0.0]
    assert ids.tolist() == [0, 2, 1, -1], "a padded token still takes its place"
    assert owner.tolist() == [0, 1] and used.tolist() == [1, 1]


def test_a_mapping_that_leaves_out_a_token_is_refused(double: State, draw: Draw) -> None:
    """The dense formula would hide it; the kernel would not compute that token."""
    from nkilib.core.moe.moe_cte.moe_cte import MoECTEImplementation

    block, x = mixtral(), draw(TOKENS, HIDDEN)
    affinities = NF().router(x, block.gate.weight.detach().T, TOP)
    flat, ids, owner, _ = NF().build_blockwise_mapping(affinities, EXPERTS, TOP, 16, None)
    kind = MoECTEImplementation.shard_on_block
    weights = plugin_experts(block.experts)
    with pytest.raises(ContractError, match="leaves out a chosen expert"):
        NF().moe_cte(x, flat, *weights, ids * 0, owner, 16, kind, skip_token=True)
    with pytest.raises(ContractError, match="hidden_states needs T \\+ 1 rows"):
        NF().moe_cte(x, flat, *weights, ids, owner, 16, kind)


def test_router_for_all_to_all_and_its_way_back(double: State, draw: Draw) -> None:
    """Norm, chosen experts, affinities; rows summed by their 1-based token index."""
    x, gamma, router = draw(1, 4, 256), torch.ones(256), draw(256, EXPERTS)
    norm, index, affinities = NF().rmsnorm_router_topk_tkg(
        x,
        gamma,
        router,
        top_k=TOP,
        router_mm_dtype=torch.float32,
        router_act_fn=enum("RouterActFnType").SOFTMAX,
    )
    n = rms(x[0], gamma, 1e-6)
    values, chosen = (n @ router).topk(TOP)
    close(norm, n)
    assert torch.equal(index, chosen.int())
    want = torch.zeros(4, EXPERTS).scatter(1, chosen, values.softmax(-1))
    close(affinities.float(), want, 1e-2)
    rows = draw(3, 8).bfloat16()
    tail = torch.tensor([2, -1, 2], dtype=torch.int32)[:, None].view(torch.bfloat16)
    summed = NF().topk_reduce(torch.cat([rows, tail], 1), 3, 2)
    close(summed[1].float(), (rows[0].float() + rows[2].float()), 1e-2)
    assert summed[0].abs().sum() == summed[2].abs().sum() == 0
