"""The double's layers, sampler and groups, on one and on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.neuron.double import ContractError, State, installed
from tests.neuron.double.neuron_config import OnDeviceSamplingConfig
from tests.neuron.double_calls import data
from tests.neuron.ranks import on_ranks

RANK = torch.tensor(0, dtype=torch.int32)


def sampler(**config: Any) -> Any:
    """A sampler of one rank."""
    from vllm_neuron.nn.sampler import Sampler

    return Sampler(OnDeviceSamplingConfig(**config))


def drawn(logits: Tensor, top_k: float, top_p: float, heat: float, **config: Any) -> int:
    """One row's id, the middle of the distribution in place of a random number."""
    params = torch.tensor([[top_k, top_p, heat]])
    tokens = sampler(deterministic=True, **config)(logits[None], params, tp_rank=RANK)
    assert tokens.dtype == torch.int32
    return int(tokens[0])


def test_the_sampler(double: State) -> None:
    """Greedy below 1e-5; top-k; temperature; the token that crosses top_p is dropped."""
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()
    assert drawn(logits, -1, 1.0, 0.0) == 0
    assert drawn(logits, -1, 1.0, 1.0) == 2, "0.5 lies in the second largest, after 0.4"
    assert drawn(logits, 1, 1.0, 1.0) == 0
    assert drawn(logits, -1, 0.6, 1.0) == 0, "0.4 + 0.3 > 0.6: Hugging Face would keep both"
    assert drawn(logits, -1, 0.1, 1.0) == 0, "the first one always stays"
    assert drawn(logits, -1, 1.0, 1.0, max_top_k=1) == 0, "top_k off still means max_top_k"
    mask = torch.tensor([[False, True, True, True]])
    params = torch.tensor([[-1.0, 1.0, 0.0]])
    assert int(sampler()(logits[None], params, mask, RANK)[0]) == 2


def test_what_the_sampler_refuses(double: State) -> None:
    logits, params = data(2, 8), torch.zeros(2, 3)
    for arguments, text in (
        ((logits, params), "pass `tp_rank` as a tensor"),
        ((logits, params[:1], None, RANK), r"must be \[R, 3\]"),
        ((logits, params.double(), None, RANK), "are float32"),
        ((logits, params, torch.ones(2, 4, dtype=torch.bool), RANK), "shaped like logits"),
        ((logits, params, torch.ones(2, 8), RANK), "must be bool"),
        ((logits, None, None, RANK), "needed unless all_greedy"),
    ):
        with pytest.raises(ContractError, match=text):
            sampler()(*arguments)
    assert sampler(all_greedy=True)(logits, tp_rank=RANK).tolist() == [7, 7]


def test_what_the_embedding_refuses(double: State) -> None:
    from vllm_neuron.nn.embedding import VocabDimShardedEmbedding

    table = VocabDimShardedEmbedding(8, 4)
    with pytest.raises(ContractError, match="pass `rank` as a tensor"):
        table(torch.zeros(2).int())
    with pytest.raises(ValueError, match="expected ids"):
        table(torch.zeros(1, 2).int(), rank=RANK)


def on_two(function: Callable[[State, Tensor], Any]) -> list[Any]:
    """function(double, rank) on two ranks with the double installed."""

    def run() -> Any:
        with torch.no_grad(), installed() as double:
            return function(double, torch.tensor(torch.distributed.get_rank(), dtype=torch.int32))

    return on_ranks(2, run)


def test_layers_on_two_ranks() -> None:
    """Sharded embeddings and linears equal the whole ones; the sampler sees the whole vocabulary."""
    table, w, bias, ids = data(7, 4), data(6, 4), data(6), torch.tensor([0, 6, 3, 5])

    def run(double: State, rank: Tensor) -> Any:
        import vllm_neuron.nn as layers
        from vllm_neuron.nn.embedding import EmbedDimShardedEmbedding, VocabDimShardedEmbedding
        from vllm_neuron.nn.sampler import Sampler

        at = int(rank)
        rows = VocabDimShardedEmbedding(7, 4)
        rows.weight.data = torch.cat([table, torch.full((1, 4), 9.0)])[at * 4 : at * 4 + 4]
        wide = EmbedDimShardedEmbedding(7, 4)
        wide.weight.data = table[:, at * 2 : at * 2 + 2].contiguous()
        columns = layers.ColumnParallelLinear(4, 6, gather_output=True)
        columns.weight.data, columns.bias.data = w[at * 3 : at * 3 + 3], bias[at * 3 : at * 3 + 3]
        row = layers.RowParallelLinear(4, 6)
        row.weight.data, row.bias.data = w[:, at * 2 : at * 2 + 2], bias
        x = table[ids]
        config = SimpleNamespace(
            all_greedy=False, max_top_k=256, deterministic=True, capture_topk=False
        )
        logits = data(2, 8).flip(1)[:, at * 4 : at * 4 + 4]
        tokens = Sampler(config, torch.distributed.group.WORLD)(
            logits, torch.zeros(2, 3), tp_rank=rank
        )
        return {
            "whole": rows(ids, scatter_tokens=False, rank=rank),
            "part": rows(ids, rank=rank),
            "wide": wide(ids),
            "columns": columns(x),
            "row": row(x[:, at * 2 : at * 2 + 2]),
            "tokens": tokens.tolist(),
        }

    for at, got in enumerate(on_two(run)):
        assert torch.equal(got["whole"], table[ids]) and torch.equal(got["wide"], table[ids])
        assert torch.equal(got["part"], table[ids][at * 2 : at * 2 + 2])
        torch.testing.assert_close(got["columns"], table[ids] @ w.T + bias)
        torch.testing.assert_close(got["row"], table[ids] @ w.T + bias)
        assert got["tokens"] == [0, 0]


def test_groups_on_two_ranks() -> None:
    """all_reduce works in place; expert-parallel groups exist only with a degree above 1."""

    def run() -> Any:
        rank = torch.distributed.get_rank()
        with installed(ep_degree=2) as double:
            from vllm.distributed.parallel_state import get_tp_group
            from vllm_neuron.parallel import neuron_parallel_state as state

            x = torch.full((2, 2), float(rank + 1))
            group = get_tp_group()
            same = group.all_reduce(x) is x
            degrees = state.get_neuron_ep_degree(), state.get_neuron_ep_rank()
            sizes = (
                state.get_neuron_ep_group().world_size,
                state.get_neuron_ep_tp_group().world_size,
            )
            gathered = group.all_gather(torch.full((1,), rank), 0).tolist()
            return same, x.tolist(), degrees, sizes, gathered, dict(double.log.collectives)

    first, second = on_ranks(2, run)
    assert first[:2] == second[:2] == (True, [[3.0, 3.0], [3.0, 3.0]])
    assert (first[2], second[2]) == ((2, 0), (2, 1))
    assert first[3] == (2, 1) and first[4] == [0, 1]
    assert first[5] == {"all_reduce": 1, "all_gather": 1}


def test_segmented_attention_over_two_ranks() -> None:
    """Tokens interleaved over ranks by blocks of 4: each rank's heads equal torch's attention."""
    block, prior, tokens, dim = 4, 16, 8, 8
    total = prior + tokens
    q, k, v = (
        torch.randn(n, total, dim, generator=torch.Generator().manual_seed(n)) for n in (4, 2, 1)
    )
    v = torch.cat([v, v * 2])

    def run(double: State, rank: Tensor) -> Any:
        import vllm_neuron.functional as NF

        at = int(rank)
        mine = [p for p in range(total) if p // block % 2 == at]
        caches = []
        for source in (k, v):
            cache = torch.zeros(8, 2, block, dim)
            old = source[:, [p for p in mine if p < prior]].view(2, 2, block, dim)
            cache[[5, 3]] = old.transpose(0, 1)
            caches.append(cache)
        new = [p for p in mine if p >= prior]
        return NF.segmented_attention_cp(
            q[at * 2 : at * 2 + 2, prior:],
            k[:, new],
            v[:, new],
            *caches,
            torch.tensor([[5, 3]], dtype=torch.int32),
            torch.tensor([[prior // 2]]),
            block,
            rank.view(1, 1),
            2,
            block,
            torch.distributed.group.WORLD,
        )

    keys, values = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    want = nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True)[:, prior:]
    for at, got in enumerate(on_two(run)):
        torch.testing.assert_close(got, want[at * 2 : at * 2 + 2], rtol=1e-5, atol=1e-5)


def test_no_expert_groups_on_one_rank(double: State) -> None:
    from vllm_neuron.parallel import neuron_parallel_state as state

    assert state.get_neuron_ep_degree() == 1
    assert state.get_neuron_mlp_dp_group().world_size == 1
    with pytest.raises(AssertionError, match="ep_degree is 1"):
        state.get_neuron_ep_group()
