"""The NF functions for mixtures of experts against formulas in float64, written token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neuron_autoport import nf as NF

TOKENS, WIDTH, EXPERTS, INNER = 9, 24, 6, 20
ORDER = NF.RouterComputationOrder
MODE = NF.ExpertAffinityScaleMode
ACT = NF.ActFnType
TOPK_ACT, RENORM, SCATTER = (
    ORDER.PRENORM_LINEAR_TOPK_ACT_SCATTER, ORDER.PRENORM_LINEAR_ACT_TOPK_RENORM_SCATTER,
    ORDER.PRENORM_LINEAR_TOPK_SCATTER_ACT,
)  # fmt: skip
BLOCKS = NF.MoECTEImplementation.shard_on_block


def f64(x: Tensor) -> Any:
    return x.double().numpy()


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


SCORE = {"softmax": softmax, "sigmoid": sigmoid}


def chosen(row: Any, k: int) -> Any:
    return np.argsort(-row, kind="stable")[:k]


def affinity(logits: Any, k: int, score: str, over_all: bool, renormalize: bool) -> Any:
    """[T, E], one token after the other."""
    found = np.zeros_like(logits)
    for row, out in zip(logits, found, strict=True):
        scored = SCORE[score](row) if over_all else row
        at = chosen(scored, k)
        weights = scored[at] if over_all else SCORE[score](row[at])
        out[at] = weights / weights.sum() if renormalize else weights
    return found


def expert(
    x: Any, gate_up: Any, down: Any, bias: Any, down_bias: Any, act: ACT, limits: dict[str, float]
) -> Any:
    """One expert on one row."""
    gate, up = x @ gate_up[:, 0] + bias[0], x @ gate_up[:, 1] + bias[1]
    gate = np.clip(gate, limits.get("gate_lower", -np.inf), limits.get("gate_upper", np.inf))
    up = np.clip(up, limits.get("up_lower", -np.inf), limits.get("up_upper", np.inf))
    if act == ACT.GELU:
        tails = torch.erf(torch.from_numpy(gate) / 2**0.5).numpy()
        inner = gate * 0.5 * (1 + tails)
    else:
        inner = gate * sigmoid((1.702 if act == ACT.Swish else 1.0) * gate)
    return (inner * up) @ down + down_bias


def make(draw: Any) -> dict[str, Tensor]:
    return {
        "gate_up": draw(EXPERTS, WIDTH, 2, INNER, scale=0.3),
        "down": draw(EXPERTS, INNER, WIDTH, scale=0.3),
        "bias": draw(EXPERTS, 2, INNER),
        "down_bias": draw(EXPERTS, WIDTH),
    }


def summed(x: Any, weights: Any, w: dict[str, Tensor], act: ACT, limits: dict[str, float]) -> Any:
    """Only the experts a token chose."""
    found = np.zeros_like(x)
    for token in range(len(x)):
        for e in np.nonzero(weights[token])[0]:
            parts = [f64(w[name][e]) for name in ("gate_up", "down", "bias", "down_bias")]
            found[token] += weights[token, e] * expert(x[token], *parts, act, limits)
    return found


def named(limits: dict[str, float]) -> dict[str, float]:
    return {f"{name.replace('_', '_clamp_')}_limit": value for name, value in limits.items()}


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    ("order", "over_all", "renormalize"),
    [(TOPK_ACT, False, False), (RENORM, True, True), (SCATTER, False, False)],
)
@pytest.mark.parametrize("k", [1, 3])
def test_router(
    draw: Any, close: Any, score: str, order: Any, over_all: bool, renormalize: bool, k: int
) -> None:
    x, weight, bias = draw(TOKENS, WIDTH, outliers=True), draw(WIDTH, EXPERTS), draw(EXPERTS)
    got = NF.router(
        x,
        weight * 0.1,
        k,
        bias,
        activation=score,
        return_logits=True,
        router_computation_order=order,
    )
    logits = f64(x) @ f64(weight * 0.1) + f64(bias)
    close(got[0], affinity(logits, k, score, over_all, renormalize), rel=2e-5)
    close(got[1], logits)


def test_router_with_its_norm(draw: Any, close: Any) -> None:
    x, weight, gamma = draw(TOKENS, WIDTH, scale=7.0), draw(WIDTH, EXPERTS), draw(WIDTH)
    got = NF.router(x, weight, 2, gamma=gamma, eps=1e-3)
    wide = f64(x)
    n = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * f64(gamma)
    close(got, affinity(n @ f64(weight), 2, "softmax", False, False), rel=2e-5)


def test_router_in_bfloat16_computes_in_float32(draw: Any, close: Any) -> None:
    x, weight = draw(TOKENS, WIDTH).bfloat16(), draw(WIDTH, EXPERTS).bfloat16()
    got = NF.router(x, weight, 2)
    assert isinstance(got, Tensor) and got.dtype == torch.float32
    close(got, affinity(f64(x) @ f64(weight), 2, "softmax", False, False), rel=2e-5)


@pytest.mark.parametrize(("tokens", "experts", "k", "size"), [
    (40, 6, 2, 16), (7, 2, 1, 4), (64, 8, 8, 16), (3, 8, 1, 128), (128, 4, 2, 128),
])  # fmt: skip
def test_every_choice_has_one_place(
    draw: Any, tokens: int, experts: int, k: int, size: int
) -> None:
    """Read back: block by block, the tokens of each expert are those that chose it, each once."""
    affinities = torch.zeros(tokens, experts)
    at = draw(tokens, experts).topk(k).indices
    affinities.scatter_(1, at, draw(tokens, k).abs() + 0.1)
    affinities[0] = 0  # a token that chose none
    flat, ids, owner, used = NF.build_blockwise_mapping(affinities, experts, k, size, None)
    assert torch.equal(flat, affinities.view(-1, 1))
    most = tokens * min(k, experts)
    assert len(owner) == min(-(-(most - (experts - 1)) // size) + experts - 1, most)
    held: dict[int, list[int]] = {e: [] for e in range(experts)}
    for block, e, is_used in zip(ids.view(-1, size), owner.tolist(), used.tolist(), strict=True):
        held[e] += [t for t in block.tolist() if t >= 0]
        assert bool((block >= 0).any()) == bool(is_used)
    assert held == {e: affinities[:, e].nonzero()[:, 0].tolist() for e in range(experts)}


def test_padding_keeps_its_place_and_loses_its_affinity() -> None:
    """As the plugin's contract has it: the mask acts after the experts are read."""
    affinities = torch.tensor([[0.5, 0.0], [0.0, 0.25], [1.0, 0.0]])
    mask = torch.tensor([True, True, False])
    flat, ids, owner, used = NF.build_blockwise_mapping(
        affinities, 2, 1, 2, None, padding_mask=mask
    )
    assert flat.flatten().tolist() == [0.5, 0.0, 0.0, 0.25, 0.0, 0.0]
    assert ids.tolist() == [0, 2, 1, -1]
    assert owner.tolist() == [0, 1] and used.tolist() == [1, 1]


LIMITS = {"gate_upper": 0.5, "up_lower": -0.75, "up_upper": 1.25}


@pytest.mark.parametrize("act", [ACT.SiLU, ACT.GELU, ACT.Swish])
@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["free", "clamped"])
def test_experts_in_prefill(draw: Any, close: Any, act: ACT, limits: dict[str, float]) -> None:
    x, w = draw(TOKENS, WIDTH), make(draw)
    affinities = NF.router(x, draw(WIDTH, EXPERTS), 2)
    assert isinstance(affinities, Tensor)
    flat, ids, owner, used = NF.build_blockwise_mapping(affinities, EXPERTS, 2, 4, None)
    got = NF.moe_cte(
        x, flat, w["gate_up"], w["down"], ids, owner, 4, BLOCKS, conditions=used,
        gate_and_up_proj_bias=w["bias"], down_proj_bias=w["down_bias"][:, None],
        activation_function=act, skip_token=True, **named(limits),
    )  # fmt: skip
    close(got, summed(f64(x), f64(affinities), w, act, limits), rel=2e-5)


@pytest.mark.parametrize("mode", [MODE.PRE_SCALE, MODE.PRE_SCALE_DELAYED])
def test_weights_before_a_product(draw: Any, close: Any, mode: MODE) -> None:
    """Without biases, which an expert that was not chosen would add."""
    x, w = draw(TOKENS, WIDTH), make(draw)
    affinities = NF.router(x, draw(WIDTH, EXPERTS), 2)
    assert isinstance(affinities, Tensor)
    flat, ids, owner, _ = NF.build_blockwise_mapping(affinities, EXPERTS, 2, 4, None)
    got = NF.moe_cte(
        x, flat, w["gate_up"], w["down"], ids, owner, 4, BLOCKS, skip_token=True,
        expert_affinities_scaling_mode=mode,
    )  # fmt: skip
    want = np.zeros_like(f64(x))
    for token, row in enumerate(f64(x)):
        for e in np.nonzero(f64(affinities)[token])[0]:
            share = f64(affinities)[token, e]
            given = row * share if mode == MODE.PRE_SCALE else row
            gate, up = (given @ f64(w["gate_up"][e])[:, i] for i in (0, 1))
            inner = gate * sigmoid(gate) * up
            inner = inner * share if mode == MODE.PRE_SCALE_DELAYED else inner
            want[token] += inner @ f64(w["down"][e])
    close(got, want, rel=2e-5)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("over_all", [True, False])
@pytest.mark.parametrize("renormalize", [True, False])
def test_a_block_in_decode(
    draw: Any, close: Any, score: str, over_all: bool, renormalize: bool
) -> None:
    x, w, gamma = draw(3, 2, WIDTH, scale=5.0), make(draw), draw(1, WIDTH)
    router, bias = draw(WIDTH, EXPERTS), draw(1, EXPERTS)
    got = NF.moe_block_tkg(
        x, gamma, router, w["gate_up"], w["down"], top_k=2, router_bias=bias,
        expert_gate_up_bias=w["bias"], expert_down_bias=w["down_bias"], eps=1e-3,
        router_act_fn=NF.RouterActFnType[score.upper()], router_pre_norm=over_all,
        norm_topk_prob=renormalize, expert_affinities_scaling_mode=MODE.POST_SCALE,
        hidden_act_fn=ACT.Swish, **named(LIMITS),
    )  # fmt: skip
    wide = f64(x).reshape(6, WIDTH)
    n = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * f64(gamma)
    logits = n @ f64(router) + f64(bias)
    weights = affinity(logits, 2, score, over_all, renormalize)
    close(got[0], summed(n, weights, w, ACT.Swish, LIMITS), rel=2e-5)
    close(got[1], logits)


def test_no_scale_weighs_each_chosen_expert_with_one(draw: Any, close: Any) -> None:
    x, w, router = draw(4, WIDTH), make(draw), draw(WIDTH, EXPERTS)
    got = NF.moe_block_tkg(
        x, torch.ones(1, WIDTH), router, w["gate_up"], w["down"], top_k=3, skip_router_logits=True,
        expert_gate_up_bias=w["bias"], expert_down_bias=w["down_bias"], eps=0.0,
    )  # fmt: skip
    n = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True))
    weights = affinity(n @ f64(router), 3, "sigmoid", True, False) > 0
    close(got, summed(n, weights.astype(float), w, ACT.SiLU, {}), rel=2e-5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_local_experts_add_up(draw: Any, close: Any, ranks: int) -> None:
    """Each rank with its own experts, in both phases."""
    x, w, router = draw(TOKENS, WIDTH), make(draw), draw(WIDTH, EXPERTS)
    count, gamma = EXPERTS // ranks, torch.ones(1, WIDTH)
    n = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + 1e-6)
    weights = affinity(n @ f64(router), 2, "softmax", False, False)
    want = summed(n, weights, w, ACT.SiLU, {})
    decode, prefill = torch.zeros(TOKENS, WIDTH), torch.zeros(TOKENS, WIDTH)
    affinities = torch.from_numpy(weights).float()
    for rank in range(ranks):
        own = slice(rank * count, (rank + 1) * count)
        mine = {name: value[own].contiguous() for name, value in w.items()}
        decode += NF.moe_block_tkg(
            x, gamma, router, mine["gate_up"], mine["down"], torch.tensor([[rank]]), 2,
            expert_gate_up_bias=mine["bias"], expert_down_bias=mine["down_bias"],
            router_act_fn=NF.RouterActFnType.SOFTMAX, router_pre_norm=False,
            expert_affinities_scaling_mode=MODE.POST_SCALE, skip_router_logits=True,
        )  # fmt: skip
        local = NF.get_local_expert_affinities(affinities, torch.arange(count) + rank * count)
        flat, ids, owner, _ = NF.build_blockwise_mapping(local, count, 2, 4, None)
        prefill += NF.moe_cte(
            torch.from_numpy(n).float(), flat, mine["gate_up"], mine["down"], ids, owner, 4, BLOCKS,
            gate_and_up_proj_bias=mine["bias"], down_proj_bias=mine["down_bias"][:, None],
            skip_token=True,
        )  # fmt: skip
    close(decode, want, rel=2e-5)
    close(prefill, want, rel=2e-5)


def test_no_shape_depends_on_a_value(draw: Any) -> None:
    """One full graph, whatever the tokens choose."""
    w, router = make(draw), draw(WIDTH, EXPERTS)

    def block(x: Tensor) -> Tensor:
        affinities: Any = NF.router(x, router, 2)
        flat, ids, owner, used = NF.build_blockwise_mapping(affinities, EXPERTS, 2, 4, None)
        return NF.moe_cte(
            x,
            flat,
            w["gate_up"],
            w["down"],
            ids,
            owner,
            4,
            BLOCKS,
            conditions=used,
            skip_token=True,
        )

    compiled = torch.compile(block, fullgraph=True, backend="eager")
    for scale in (1.0, 3.0):
        x = draw(TOKENS, WIDTH, scale=scale)
        torch.testing.assert_close(compiled(x), block(x))
