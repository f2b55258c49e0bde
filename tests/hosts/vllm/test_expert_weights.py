"""Checkpoint tensors of experts land where vLLM's layer and transformers' experts keep them.

The expected places are cut out of the packed tensors by hand, for every layout, order and rank.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.hosts.vllm.expert_weights import (
    Part,
    checkpoint_parts,
    load_fused,
    load_plain,
)
from neuron_autoport.trace.experts import ExpertsFacts
from neuron_autoport.trace.glu import Gate
from tests.trace.routers import small_config

E, H, INNER = 4, 6, 8


def facts(order: str = "gate_up", layout: str = "out_in", biases: bool = False) -> ExpertsFacts:
    up_bias, down_bias = ("gate_up_proj_bias", "down_proj_bias") if biases else (None, None)
    gate = Gate("silu", order)
    return ExpertsFacts(
        E, H, INNER, gate, "gate_up_proj", "down_proj", layout, up_bias, down_bias, False
    )


def routed(rank: int = 0, ranks: int = 1, local: tuple[int, ...] = tuple(range(E))) -> Any:
    """What `load_fused` sees of vLLM's `RoutedExperts`: parameters and which experts are here."""
    inner, here = INNER // ranks, len(local)
    config = SimpleNamespace(
        intermediate_size_per_partition_unpadded=inner, tp_rank=rank, num_experts=E,
        num_logical_experts=E,
    )  # fmt: skip

    def parameter(*shape: int) -> Any:
        return SimpleNamespace(data=torch.full(shape, float("nan")))

    return SimpleNamespace(
        moe_config=config,
        w13_weight=parameter(here, 2 * inner, H),
        w2_weight=parameter(here, H, inner),
        w13_bias=parameter(here, 2 * inner),
        w2_bias=parameter(here, H),
        _map_global_expert_id_to_local_expert_id=lambda e: local.index(e) if e in local else -1,
    )


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """gate, up [E, I, H], down [E, H, I], and biases."""
    torch.manual_seed(0)
    return {
        "gate": torch.randn(E, INNER, H), "up": torch.randn(E, INNER, H),
        "down": torch.randn(E, H, INNER), "gate_bias": torch.randn(E, INNER),
        "up_bias": torch.randn(E, INNER), "down_bias": torch.randn(E, H),
    }  # fmt: skip


def packed(t: dict[str, torch.Tensor], order: str, layout: str) -> dict[str, torch.Tensor]:
    """The parameters of transformers' experts in this order and layout."""
    pairs = {"gate_up": ("gate", "up"), "up_gate": ("up", "gate"), "interleaved": ("gate", "up")}
    first, second = pairs[order]
    if order == "interleaved":
        wide = torch.stack([t[first], t[second]], dim=2).flatten(1, 2)
        bias = torch.stack([t[first + "_bias"], t[second + "_bias"]], dim=2).flatten(1, 2)
    else:
        wide = torch.cat([t[first], t[second]], dim=1)
        bias = torch.cat([t[first + "_bias"], t[second + "_bias"]], dim=1)
    down = t["down"]
    if layout == "in_out":
        wide, down = wide.transpose(1, 2), down.transpose(1, 2)
    return {
        "gate_up_proj": wide, "down_proj": down,
        "gate_up_proj_bias": bias, "down_proj_bias": t["down_bias"],
    }  # fmt: skip


@pytest.mark.parametrize("order", ["gate_up", "up_gate", "interleaved"])
@pytest.mark.parametrize("layout", ["out_in", "in_out"])
@pytest.mark.parametrize("interleave", [False, True])
def test_packed_parameters(
    order: str, layout: str, interleave: bool, tensors: dict[str, torch.Tensor]
) -> None:
    for rank, ranks in ((0, 1), (0, 2), (1, 2)):
        into = routed(rank, ranks)
        weights = packed(tensors, order, layout)
        list(load_fused(into, facts(order, layout, True), interleave, {}, weights.items()))
        columns = slice(rank * INNER // ranks, (rank + 1) * INNER // ranks)
        gate, up = tensors["gate"][:, columns], tensors["up"][:, columns]
        biases = tensors["gate_bias"][:, columns], tensors["up_bias"][:, columns]
        wanted = torch.cat([gate, up], dim=1)
        wanted_bias = torch.cat(biases, dim=1)
        if interleave:
            wanted = torch.stack([gate, up], dim=2).flatten(1, 2)
            wanted_bias = torch.stack(biases, dim=2).flatten(1, 2)
        torch.testing.assert_close(into.w13_weight.data, wanted, rtol=0, atol=0)
        torch.testing.assert_close(into.w13_bias.data, wanted_bias, rtol=0, atol=0)
        torch.testing.assert_close(
            into.w2_weight.data, tensors["down"][..., columns], rtol=0, atol=0
        )
        down_bias = tensors["down_bias"] if rank == 0 else torch.zeros(E, H)  # added once
        torch.testing.assert_close(into.w2_bias.data, down_bias, rtol=0, atol=0)


def test_experts_without_a_gate(tensors: dict[str, torch.Tensor]) -> None:
    """One product: vLLM keeps it where gate and up would be, half as wide."""
    gate = Gate("relu2", None)
    known = ExpertsFacts(E, H, INNER, gate, "up_proj", "down_proj", "out_in", None, None, False)
    for rank, ranks in ((0, 1), (1, 2)):
        into = routed(rank, ranks)
        into.w13_weight.data = torch.full((E, INNER // ranks, H), float("nan"))
        weights = {"up_proj": tensors["up"], "down_proj": tensors["down"]}
        list(load_fused(into, known, False, {}, weights.items()))
        columns = slice(rank * INNER // ranks, (rank + 1) * INNER // ranks)
        torch.testing.assert_close(into.w13_weight.data, tensors["up"][:, columns], rtol=0, atol=0)
        torch.testing.assert_close(
            into.w2_weight.data, tensors["down"][..., columns], rtol=0, atol=0
        )


def test_one_tensor_per_expert_on_the_rank_that_has_it(tensors: dict[str, torch.Tensor]) -> None:
    parts = {
        "w1.weight": Part("gate_up_proj", 0, 2), "w3.weight": Part("gate_up_proj", 1, 2),
        "w2.weight": Part("down_proj", 0, 1),
    }  # fmt: skip
    names = {"w1.weight": "gate", "w3.weight": "up", "w2.weight": "down"}
    weights = [(f"{e}.{n}", tensors[kind][e]) for e in range(E) for n, kind in names.items()]
    into = routed(local=(2, 3))
    loaded = set(load_fused(into, facts(), False, parts, weights))
    assert loaded == {"routed_experts.w13_weight", "routed_experts.w2_weight"}
    wanted = torch.cat([tensors["gate"], tensors["up"]], dim=1)[2:]
    torch.testing.assert_close(into.w13_weight.data, wanted, rtol=0, atol=0)
    torch.testing.assert_close(into.w2_weight.data, tensors["down"][2:], rtol=0, atol=0)


def test_a_tensor_that_no_parameter_stands_for_is_an_error(
    tensors: dict[str, torch.Tensor],
) -> None:
    with pytest.raises(HostError, match=r"`0\.scale`"):
        list(load_fused(routed(), facts(), False, {}, [("0.scale", tensors["gate"][0])]))


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "granitemoe", "lfm2_moe"])
def test_plain_experts_get_what_from_pretrained_gives_them(model_type: str, tmp_path: Any) -> None:
    """A checkpoint written by transformers, loaded by its own loader and by ours."""
    from safetensors.torch import load_file

    config = small_config(model_type)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    path = next(n for n, m in model.named_modules() if n.endswith(".experts"))
    theirs = model.get_submodule(path)
    ours = nn.Module()
    for name, parameter in theirs.named_parameters():
        ours.register_parameter(name, nn.Parameter(torch.full_like(parameter, float("nan"))))
    names = _renamed(model, load_file(tmp_path / "model.safetensors"))
    weights = {k.removeprefix(path + "."): v for k, v in names.items() if k.startswith(path + ".")}
    loaded = set(load_plain(ours, checkpoint_parts(model, path), weights.items()))
    assert loaded == {name for name, _ in theirs.named_parameters()}
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).data, parameter.data, rtol=0, atol=0)


def _renamed(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as the host's loader sees them: after transformers' plain renamings."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    renamings = [r for r in get_model_conversion_mapping(model) if isinstance(r, WeightRenaming)]
    found = {}
    for name, tensor in tensors.items():
        for renaming in renamings:
            name, _ = renaming.rename_source_key(name)
        found[name] = tensor
    return found
