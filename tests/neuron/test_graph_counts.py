"""`benchmarks/neuron_graph.py`: what one decoder layer's graphs hold. Fixed here, so that no call is lost unseen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx

from benchmarks.neuron_graph import count, layer_counts


def test_a_llama_layer() -> None:
    """Decode: the fused attention, the fused MLP, a sum over ranks after each, and no other product."""
    counts = layer_counts("llama")
    decode, prefill = counts["decode"], counts["prefill"]
    nf = {name: n for name, n in decode.functions.items() if name.startswith("NF.")}
    assert nf == {"NF.attention_decode": 1, "NF.mlp": 1}
    assert decode.collectives == Counter(all_reduce=2)
    assert decode.matmuls == 0
    nf = {name: n for name, n in prefill.functions.items() if name.startswith("NF.")}
    assert nf == {"NF.qkv_proj": 1, "NF.flash_attention": 1, "NF.o_proj": 1, "NF.mlp": 1}
    assert set(prefill.functions) - set(nf) == {"NK.rms_norm", "NK.add_rms_norm"}  # no rotation
    assert prefill.collectives == Counter(all_reduce=2)
    assert prefill.matmuls == 0


def test_a_layer_with_soft_capped_scores() -> None:
    """No NF attention: two products in torch, and the projections in NF."""
    decode = layer_counts("gemma2")["decode"]
    assert "NF.attention_decode" not in decode.functions
    assert decode.functions["NF.qkv_proj"] == decode.functions["NF.o_proj"] == 1
    assert decode.matmuls == 2 and decode.collectives == Counter(all_reduce=2)


def test_products_are_counted_in_every_spelling() -> None:
    def several(x: Any, w: Any) -> Any:
        y = x @ w + torch.matmul(x, w) + torch.nn.functional.linear(x, w) + x.mm(w)
        return torch.einsum("ij,jk->ik", y, w) + torch.addmm(x, y, w).view(-1).reshape(4, 4)

    counts = count(fx.symbolic_trace(several).graph)
    assert counts.matmuls == 6
    assert counts.tensor_ops["add"] == 4 and "view" not in counts.tensor_ops
