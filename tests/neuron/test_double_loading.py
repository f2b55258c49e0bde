"""The double's weight loaders and checkpoint reader: a rank's part of each tensor, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.neuron.double import State
from tests.neuron.double.weight_loader import SafetensorsWeightLoader
from tests.neuron.double_calls import data


class Slice:
    """A tensor in a safetensors file: read only through an index, which is noted."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.read = 0

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, key: Any) -> Tensor:
        part = self.tensor[key]
        self.read += part.numel()
        return part


def loaded(loader: SafetensorsWeightLoader, rank: int, *tensors: Tensor) -> Tensor:
    """What a loader makes of the tensors for one rank."""
    return loader.load([Slice(tensor) for tensor in tensors], rank)


def test_sharding_loaders(double: State) -> None:
    from vllm_neuron.utils import weight_loader as loaders

    w = torch.arange(24.0).view(4, 6)
    columns = loaders.sharding_weight_loader(1, 2, 2, is_storage_transposed=True)
    assert torch.equal(loaded(columns, 1, w), w[2:4].T)
    assert loaded(columns, 1, w).is_contiguous()
    rows = loaders.sharding_weight_loader(0, 3, 2, is_storage_transposed=True)
    assert torch.equal(loaded(rows, 3, w), w[:, 3:].T), "rank modulo the number of shards"
    padded = loaders.sharding_weight_loader(0, 3, 2, pad_shard=True)
    assert torch.equal(loaded(padded, 1, w), torch.cat([w[3:], torch.zeros(2, 6)]))
    wide = loaders.sharding_weight_loader_with_padding(0, 2, 2, False, 1, 8, 6)
    assert torch.equal(loaded(wide, 0, w), nn.functional.pad(w[:2], (0, 2)))
    assert torch.equal(
        loaded(loaders.scaled_bias_loader(4, 8), 1, w[0]), nn.functional.pad(w[0] / 4, (0, 2))
    )
    assert torch.equal(
        loaded(loaders.last_dim_padding_weight_loader(7), 0, w[0]), nn.functional.pad(w[0], (0, 1))
    )
    assert torch.equal(loaded(loaders.with_rank_override(padded, 0), 1, w), w[:3])


def test_a_loader_reads_its_part_only(double: State) -> None:
    from vllm_neuron.utils.weight_loader import sharding_weight_loader

    part = Slice(torch.zeros(8, 4))
    sharding_weight_loader(0, 2, 4).load([part], 3)
    assert part.read == 8


def test_the_fused_qkv_loader(double: State) -> None:
    """Four query heads, two KV heads of 2 over four ranks: rank 3 gets KV head 1."""
    from vllm_neuron.utils.weight_loader import fused_qkv_weight_loader

    q, k, v = data(8, 3), data(4, 3) + 10, data(4, 3) + 20
    loader = fused_qkv_weight_loader(2, 2, 1, 4, is_storage_transposed=True, num_kv_replicas=2)
    want = torch.cat([q[6:8], k[2:4], v[2:4]]).T
    assert torch.equal(loaded(loader, 3, q, k, v), want)
    with pytest.raises(AssertionError, match="weights only, not biases"):
        loaded(loader, 0, q[:, 0], k[:, 0], v[:, 0])


def test_expert_loaders(double: State) -> None:
    from vllm_neuron.utils import weight_loader as loaders

    def stack(slices: list[Any], rank: int) -> Tensor:
        return torch.stack([each[:] for each in slices])

    inner = SafetensorsWeightLoader(stack)
    experts = [torch.full((2,), float(i)) for i in range(8)]
    grouped = loaders.expert_parallel_grouped_loader([2, 3], inner, 4)
    assert loaded(grouped, 0, *experts)[:, 0].tolist() == [2.0, 3.0, 6.0, 7.0]
    between = loaders.expert_parallel_interleaved_loader([2, 3], inner, 4)
    assert loaded(between, 0, *experts)[:, 0].tolist() == [4.0, 5.0, 6.0, 7.0]
    whole = data(4, 6, 2)
    cut = loaders.sharding_weight_loader(1, 3, 2)
    local = loaders.expert_parallel_tensor_dim_loader([1, 2], cut)
    assert torch.equal(loaded(local, 1, whole), whole[1:3, 3:])
    with pytest.raises(ValueError, match="contiguous"):
        loaders.expert_parallel_grouped_loader([0, 2], inner, 4)


def test_the_checkpoint_reader(double: State, tmp_path: Path) -> None:
    """Several files, mappings to one or several tensors, dtypes, missing and unused names."""
    from vllm_neuron.utils.checkpoints import SafetensorsCheckpoint
    from vllm_neuron.utils.weight_loader import set_weight_loader

    save_file({"a": data(4), "b": data(4) + 1}, tmp_path / "model-1.safetensors")
    save_file({"c": data(2), "spare": data(2)}, tmp_path / "model-2.safetensors")
    model = nn.Module()
    model.fused = nn.Parameter(torch.empty(8, device="meta", dtype=torch.bfloat16))
    model.c = nn.Parameter(torch.empty(2, device="meta"))
    model.register_buffer("buffer", torch.empty(2, device="meta"))
    joined = SafetensorsWeightLoader(lambda slices, rank: torch.cat([s[:] for s in slices]))
    set_weight_loader(model.fused, joined)
    reader = SafetensorsCheckpoint(str(tmp_path))
    assert sorted(reader.get_tensor_names()) == ["a", "b", "c", "spare"]
    cpu = torch.device("cpu")
    mappings: dict[str, Any] = {"fused": ["a", "b"], "of nothing": "x"}
    result = reader.load_sharded_pipelined(0, 1, model, mappings, cpu)
    assert set(result.state_dict) == {"fused", "c"} and result.unexpected_keys == ["spare"]
    assert torch.equal(result.state_dict["fused"], torch.cat([data(4), data(4) + 1]).bfloat16())
    with pytest.raises(RuntimeError, match=r"no \['gone'\]"):
        reader.load_sharded(0, 1, model, {"c": "gone", "fused": ["a", "b"]}, cpu)
    left = reader.load_sharded(0, 1, model, {"c": "gone", "fused": ["a", "b"]}, cpu, strict=False)
    assert left.missing_keys == ["c"] and left.state_dict["fused"].dtype == torch.float32
