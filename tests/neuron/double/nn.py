"""Layers of `vllm_neuron.nn`: sharded embeddings, parallel linears, the on-device sampler.

`rank` must be passed to the embedding and the sampler as a tensor: a Python rank, or none, makes
each rank compile its own graph.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.neuron.double import collectives
from tests.neuron.double.args import ContractError
from tests.neuron.double.op import named_group
from tests.neuron.double.sampling import sample
from tests.neuron.double.small import embedding
from tests.neuron.double.weight_loader import set_weight_loader, sharding_weight_loader


def _sizes(group: dist.ProcessGroup | None) -> tuple[dist.ProcessGroup | None, int, int]:
    """The group, its size and this rank in it; without torch.distributed one rank."""
    if not dist.is_initialized():
        return None, 1, 0
    group = dist.group.WORLD if group is None else group
    return group, dist.get_world_size(group), dist.get_rank(group)


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise ContractError(text)


class VocabDimShardedEmbedding(nn.Module):
    """Rows of the table over the ranks: weight [ceil(V / tp), D], the last rank's tail unused."""

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
        tp_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size, self.tp_rank = _sizes(tp_group)
        self.vocab_size = vocab_size
        self.rows = math.ceil(vocab_size / self.tp_size)
        self.weight = nn.Parameter(torch.empty(self.rows, embed_dim, device=device, dtype=dtype))
        set_weight_loader(
            self.weight, sharding_weight_loader(0, self.rows, self.tp_size, pad_shard=True)
        )

    def forward(
        self, input: Tensor, scatter_tokens: bool = True, rank: Tensor | None = None
    ) -> Tensor:
        """ids [T] -> [T / tp, D] if scattered, else [T, D].

        Raises:
            ValueError: ids not 1D.
            ContractError: no rank tensor; T not divisible when scattered.
        """
        if input.dim() != 1:
            raise ValueError(f"expected ids [T], got {tuple(input.shape)}")
        _need(isinstance(rank, Tensor), "embedding: pass `rank` as a tensor")
        _need(
            not scatter_tokens or input.shape[0] % self.tp_size == 0,
            f"embedding: {input.shape[0]} tokens cannot be scattered over {self.tp_size} ranks",
        )
        assert rank is not None
        local = input - rank * self.rows
        mine = (local >= 0) & (local < self.rows) & (input < self.vocab_size)
        rows = embedding(torch.where(mine, local, torch.zeros_like(local)), self.weight)
        rows = torch.where(mine[:, None], rows, torch.zeros_like(rows))
        if self.tp_group is None:
            return rows
        name = named_group(self.tp_group)
        if scatter_tokens:
            return collectives.reduce_scatter(rows, 0, self.tp_size, name)
        collectives.all_reduce_(rows, name)
        return rows


class EmbedDimShardedEmbedding(nn.Module):
    """Columns of the table over the ranks: weight [V, ceil(D / tp)]."""

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
        tp_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size, self.tp_rank = _sizes(tp_group)
        self.embed_dim = embed_dim
        width = math.ceil(embed_dim / self.tp_size)
        self.weight = nn.Parameter(torch.empty(vocab_size, width, device=device, dtype=dtype))
        set_weight_loader(
            self.weight, sharding_weight_loader(1, width, self.tp_size, pad_shard=True)
        )

    def forward(self, input: Tensor) -> Tensor:
        """ids [T] -> [T, D]."""
        columns = embedding(input, self.weight)
        if self.tp_group is None:
            return columns
        whole = collectives.all_gather(columns, 1, self.tp_size, named_group(self.tp_group))
        return whole[:, : self.embed_dim]


class ColumnParallelLinear(nn.Module):
    """weight [out / tp, in]. Its own loader was not seen: set one, as for any parameter."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        gather_output: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        tp_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size, self.tp_rank = _sizes(tp_group)
        assert out_features % self.tp_size == 0, f"{out_features} over {self.tp_size} ranks"
        self.out_features_per_rank = out_features // self.tp_size
        self.gather_output = gather_output
        shape = (self.out_features_per_rank, in_features)
        self.weight = nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
        self.bias = (
            nn.Parameter(torch.empty(shape[0], device=device, dtype=dtype)) if bias else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[R, in] -> [R, out / tp], or [R, out] gathered along dim 1."""
        y = nn.functional.linear(x, self.weight, self.bias)
        if not self.gather_output or self.tp_group is None:
            return y
        _need(x.dim() == 2, "ColumnParallelLinear gathers along dim 1: 2D input only")
        return collectives.all_gather(y, 1, self.tp_size, named_group(self.tp_group))


class RowParallelLinear(nn.Module):
    """weight [out, in / tp]; the partial sums are all-reduced, then the bias is added."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        tp_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size, self.tp_rank = _sizes(tp_group)
        assert in_features % self.tp_size == 0, f"{in_features} over {self.tp_size} ranks"
        _need(input_is_parallel, "RowParallelLinear: only input_is_parallel=True is in the double")
        shape = (out_features, in_features // self.tp_size)
        self.weight = nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
        self.bias = (
            nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[..., in / tp] -> [..., out]."""
        y = nn.functional.linear(x, self.weight)
        if self.tp_group is not None:
            collectives.all_reduce_(y, named_group(self.tp_group))
        if self.bias is None:
            return y
        _need(self.tp_size == 1 or self.bias.dtype == torch.float32, "with tp > 1 the bias is fp32")
        return (y + self.bias).to(y.dtype)


class Sampler(nn.Module):
    """Draws token ids from a rank's logits [R, V / tp]; equal on all ranks."""

    def __init__(
        self, sampling_config: Any, process_group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        self.config = sampling_config
        self.group = process_group

    def forward(
        self,
        logits: Tensor,
        sampling_params: Tensor | None = None,
        logit_mask: Tensor | None = None,
        tp_rank: Tensor | None = None,
    ) -> Tensor:
        """int32 [R]. sampling_params float32 [R, 3]: top_k, top_p, temperature.

        Raises:
            ContractError: shapes or dtypes of the parameters or the mask.
        """
        rows = logits.shape[0]
        _need(isinstance(tp_rank, Tensor), "Sampler: pass `tp_rank` as a tensor")
        if logit_mask is not None:
            _need(logit_mask.dtype == torch.bool, "Sampler: logit_mask must be bool")
            _need(
                logit_mask.shape == logits.shape, "Sampler: logit_mask must be shaped like logits"
            )
            logits = torch.where(logit_mask, logits, torch.full_like(logits, -1e30))
        if sampling_params is None:
            _need(self.config.all_greedy, "Sampler: sampling_params are needed unless all_greedy")
            top_k, top_p, temperature = None, None, None
        else:
            _need(sampling_params.shape == (rows, 3), "Sampler: sampling_params must be [R, 3]")
            _need(sampling_params.dtype == torch.float32, "Sampler: sampling_params are float32")
            top_k, top_p, temperature = sampling_params.unbind(1)
        return sample(
            logits,
            temperature=1.0 if temperature is None else temperature,
            top_k=-1 if top_k is None else top_k,
            top_p=1.0 if top_p is None else top_p,
            deterministic=self.config.deterministic,
            all_greedy=self.config.all_greedy,
            tp_group=self.group,
            max_top_k=self.config.max_top_k,
            tp_rank=tp_rank,
            capture_topk=self.config.capture_topk,
        )
