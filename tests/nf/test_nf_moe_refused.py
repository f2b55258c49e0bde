"""What the NF functions for mixtures of experts refuse: wrong shapes, and what the reference has no formula for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_autoport import nf as NF
from tests.nf.test_nf_moe import ACT, BLOCKS, EXPERTS, INNER, MODE, WIDTH, make


def cte(draw: Any, **changes: Any) -> Any:
    w = make(draw)
    given: dict[str, Any] = {
        "hidden_states": draw(4, WIDTH), "expert_affinities_masked": torch.rand(4 * EXPERTS, 1),
        "gate_up_proj_weight": w["gate_up"], "down_proj_weight": w["down"],
        "token_position_to_id": torch.zeros(8, dtype=torch.int32),
        "block_to_expert": torch.zeros(2, dtype=torch.int32), "block_size": 4,
        "implementation": BLOCKS, "skip_token": True,
    }  # fmt: skip
    return NF.moe_cte(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"gate_up_proj_weight": torch.zeros(EXPERTS, 2, WIDTH, INNER)}, ValueError, r"\[E, 24, 2, I\]"),
        ({"down_proj_weight": torch.zeros(EXPERTS, WIDTH, INNER)}, ValueError, r"\[6, 20, 24\]"),
        ({"down_proj_bias": torch.zeros(EXPERTS, WIDTH)}, ValueError, r"down_proj_bias must be \[6, 1, 24\]"),
        ({"block_to_expert": torch.zeros(2)}, ValueError, "must be int32"),
        ({"block_size": 8}, ValueError, "token_position_to_id"),
        ({"skip_token": False}, ValueError, "needs a row more"),
        ({"expert_affinities_scaling_mode": MODE.NO_SCALE}, NotImplementedError, "NO_SCALE"),
        ({"activation_function": ACT.GELU_Tanh_Approx}, NotImplementedError, "GELU_Tanh"),
        ({"gate_w_scale": torch.ones(1)}, NotImplementedError, "gate_w_scale"),
        ({"implementation": "shard_on_block"}, TypeError, "NF.MoECTEImplementation"),
    ],
)  # fmt: skip
def test_refused_in_prefill(draw: Any, changes: Any, error: type[Exception], text: str) -> None:
    assert cte(draw).shape == (4, WIDTH)
    with pytest.raises(error, match=text):
        cte(draw, **changes)


def test_refused_router_and_block(draw: Any) -> None:
    x, router = draw(4, WIDTH), draw(WIDTH, EXPERTS)
    w, gamma = make(draw), torch.ones(1, WIDTH)
    with pytest.raises(ValueError, match="transpose"):
        NF.router(x, router.t(), 2)
    with pytest.raises(ValueError, match="top_k is 7"):
        NF.router(x, router, 7)
    with pytest.raises(ValueError, match=r"gamma must be \[24\]"):
        NF.router(x, router, 2, gamma=gamma)
    with pytest.raises(ValueError, match="activation is 'relu'"):
        NF.router(x, router, 2, activation="relu")
    with pytest.raises(NotImplementedError, match="x_sb_layout"):
        NF.router(x, router, 2, x_sb_layout=1)
    block = [x, gamma, router, w["gate_up"], w["down"]]
    with pytest.raises(ValueError, match=r"gamma must be \[1, 24\]"):
        NF.moe_block_tkg(x, gamma[0], *block[2:])
    with pytest.raises(NotImplementedError, match="shared_expert_up_w"):
        NF.moe_block_tkg(*block, shared_expert_up_w=x)
    with pytest.raises(ValueError, match="rank_id is required"):
        NF.moe_block_tkg(*block[:3], w["gate_up"][:2], w["down"][:2])
    with pytest.raises(ValueError, match="4 local experts of 6"):
        NF.moe_block_tkg(*block[:3], w["gate_up"][:4], w["down"][:4])
