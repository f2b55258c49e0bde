"""The proof of one module: what it compares, and that it gives the same figures every time."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import torch

from neuron_autoport.prove.modules import ModuleProof, prove_module
from neuron_autoport.rewrite.plan import plan_class
from neuron_autoport.rules.library import load_rules
from neuron_autoport.trace.tracer import trace_model
from tests.helpers import (
    generated_of,
    meta_instance,
    plan_of,
    proof_of,
    real_instance,
    zoo_class,
)
from tests.rules.mlp_zoo import source_of

DROPOUT = "return self.down(F.dropout(self.act(self.gate(x)) * self.up(x), 0.5, True))"


def test_what_a_module_draws_at_random_is_the_same_in_both_forms() -> None:
    cls = zoo_class(source_of(DROPOUT, ""))
    plan = plan_of(cls)
    assert plan.sites  # the two projections around the random part
    first, second = proof_of(cls, plan), proof_of(cls, plan)
    assert first.passed, first.figures()
    assert first == second


def proof_with(source: str, *more: Any) -> ModuleProof:
    """The proof of a module on one random input and these further arguments."""
    cls = zoo_class(source)
    plan = plan_of(cls)
    assert plan.sites
    hidden = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))
    rewritten = generated_of(plan).classes[plan]
    return prove_module("", real_instance(cls), plan, rewritten, [((hidden, *more), {})])


MLP = """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(W, I), nn.Linear(W, I), nn.Linear(I, W)
"""


def test_an_original_that_does_not_run_in_bfloat16() -> None:
    """There is nothing to compare with, so float32 decides, and the proof says why."""
    proof = proof_with(
        MLP
        + """
    def forward(self, x):
        inner = self.down(F.silu(self.gate(x)) * self.up(x))
        return inner @ torch.eye(W, device=x.device, dtype=inner.dtype if x.is_meta else torch.float32)
"""
    )
    assert proof.passed and proof.bf16 is None and proof.fp32 is not None
    assert proof.no_bf16 is not None and "dtype" in proof.no_bf16
    assert "does not run in bf16" in proof.figures()


def test_a_rewrite_that_does_not_run_is_no_original_that_does_not() -> None:
    proof = proof_with(
        MLP
        + """
    def forward(self, x):
        inner = self.down(F.silu(self.gate(x)) * self.up(x))
        assert x.is_meta or hasattr(self, "gate")  # gone in the rewritten module
        return inner
"""
    )
    assert not proof.passed and proof.error is not None and proof.no_bf16 is None


def test_tensors_in_a_mapping_of_its_own_kind_are_cast_too() -> None:
    """Layers hand on keys and values in a mapping, and write to it."""
    stored = UserDict({0: (torch.ones(2, 7, 16), torch.ones(2, 7, 16))})
    proof = proof_with(
        MLP
        + """
    def forward(self, x, stored=None):
        inner = self.down(F.silu(self.gate(x)) * self.up(x))
        if stored is None:
            return inner
        stored[1] = inner
        return inner + torch.addmm(stored[0][0][0], x[0], stored[0][1][0].T @ x[0])
""",
        stored,
    )
    assert proof.passed and proof.bf16 is not None, proof.figures()
    assert list(stored) == [0] and stored[0][0].dtype is torch.float32


def test_a_sum_keeps_the_strides_of_the_residual() -> None:
    """The other operand is a transposed convolution; the original's sum is contiguous, as `view` wants."""
    proof = proof_with("""
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(W, W, 3, padding=1), Norm()

    def forward(self, x):
        mixed = self.conv(x.transpose(1, 2)).transpose(1, 2)
        total = x + mixed
        return self.norm(total).view(-1), total.view(-1)
""")
    assert proof.passed, proof.figures()


def test_an_input_that_is_float32_in_a_bfloat16_model_stays_so() -> None:
    """A norm of a float32 stream gives bfloat16 for a bfloat16 input; its site rests on the stream's dtype."""
    cls = zoo_class("""
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))

    def forward(self, x):
        kept = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(kept)
""")
    stream = torch.empty(2, 7, 16, device="meta")
    plan = plan_class(trace_model(meta_instance(cls), (stream,)), load_rules())
    assert [s.rule.name for s in plan.sites] == ["rms_norm_fp32_input"]
    rewritten = generated_of(plan).classes[plan]
    call = ((torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1)),), {})
    proof = prove_module("", real_instance(cls), plan, rewritten, [call])
    assert proof.passed and proof.bf16 is not None, proof.figures()
