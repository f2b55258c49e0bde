"""Sensitivity: every injected fault fails, in the right layer and with the right rule; harmless variants pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_autoport import nf
from neuron_autoport.accuracy.candidate import Adjust
from neuron_autoport.accuracy.explain import NOT_A_RULE
from tests.accuracy import faults
from tests.accuracy.faults import Judged, in_layer, judge, rules_with

DTYPES = (torch.bfloat16, torch.float32)
both = pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp32"])


def by_rule(judged: Judged, cls: str, rule: str, layers: int) -> None:
    """The class fails in every layer, and the rule is found guilty, alone."""
    assert not judged.level3.passed
    found = next(f for f in judged.failures if f"{cls}:{rule}" in f.rules)
    assert found.guilty == [f"{cls}:{rule}"]
    failed = {m.layer for m in judged.level3.modules
              if m.class_name == cls and not m.figures.passed and m.layer is not None}  # fmt: skip
    assert failed == set(range(layers))
    # No module that does not hold the guilty class is blamed.
    for module in judged.level3.modules:
        if not module.figures.passed:
            assert f"{cls}:{rule}" in module.rules, module.path
    assert f"--without {cls}:{rule}" in found.commands[0]
    assert f"AUTOPORT_WITHOUT={cls}:{rule}" in found.commands[1]
    assert (
        found.bad is not None and found.bad.ulps > 0 and "units in the last place" in found.bad.text
    )


def by_host(judged: Judged, layer: int, module: str) -> None:
    """One layer fails, nothing else; no rule is blamed."""
    where = f"model.layers.{layer}"
    assert judged.failed and all(p == where or p.startswith(f"{where}.") for p in judged.failed)
    assert any(p == f"{where}.{module}" for p in judged.failed) or module == ""
    for failure in judged.failures:
        assert failure.layer == layer and failure.guilty == []
        assert failure.explained.startswith(NOT_A_RULE)


RULES: list[tuple[str, str, str, str, str, int]] = [
    # The epsilon of the function, not of the model.
    ("llama", "LlamaRMSNorm", "rms_norm", ", eps=eps", "", 3),
    ("llama", "LlamaMLP", "gated_mlp", "gate.weight, up.weight,", "up.weight, gate.weight,", 3),
    # The weight of the norm without its one.
    ("gemma3_text", "Gemma3RMSNorm", "rms_norm_zero_centered", ", offset=1.0", "", 2),
    ("llama", "LlamaAttention", "qkv_proj", "stack(q_proj, k_proj, v_proj)",
     "stack(q_proj, v_proj, k_proj)", 3),
]  # fmt: skip


@both
@pytest.mark.parametrize(("name", "cls", "rule", "good", "wrong", "layers"), RULES,
                         ids=["eps default", "gate and up", "norm without its 1", "v for k"])  # fmt: skip
def test_a_wrong_rule_is_found(
    tmp_path: Path, name: str, cls: str, rule: str, good: str, wrong: str, layers: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    by_rule(
        judge(name, rules=rules_with(tmp_path, rule, good, wrong), dtype=dtype), cls, rule, layers
    )


def heads_of(out: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor], keys: bool) -> Any:
    """Change the heads [..., 4 or 2, 16] of a projection of 4 query, 2 key and 2 value heads."""
    q, k, v = out.split([64, 32, 32], dim=-1)
    new = [change(t.unflatten(-1, (-1, 16))).flatten(-2) for t in ((k, v) if keys else (q, k))]
    return torch.cat([q, *new] if keys else [*new, v], dim=-1)


def other_pairs(head: torch.Tensor) -> torch.Tensor:
    """Pairs (0, 8), (1, 9), … of a head laid out as (0, 1), (2, 3), …"""
    return head.unflatten(-1, (2, 8)).transpose(-1, -2).flatten(-2)


FUNCTIONS: list[tuple[str, str, str, Callable[[Any], Callable[..., Any]]]] = [
    ("qkv_proj", "LlamaAttention", "qkv_proj",
     lambda f: lambda *a, **k: heads_of(f(*a, **k), other_pairs, keys=False)),
    ("qkv_proj", "LlamaAttention", "qkv_proj",
     lambda f: lambda *a, **k: heads_of(f(*a, **k), lambda h: h.flip(-2), keys=True)),
    ("o_proj", "LlamaAttention", "o_proj", lambda f: lambda *a, **k: f(*a, **k) * 1.02),
    ("mlp", "LlamaMLP", "gated_mlp", lambda f: lambda *a, **k: f(*a, **k) * 1.02),
]  # fmt: skip


@both
@pytest.mark.parametrize(("function", "cls", "rule", "wrong"), FUNCTIONS,
                         ids=["rope pairs", "kv heads", "2 % o_proj", "2 % mlp"])  # fmt: skip
def test_a_wrong_fused_function_is_found(
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    cls: str,
    rule: str,
    wrong: Any,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(nf, function, wrong(getattr(nf, function)))
    by_rule(judge("llama", dtype=dtype), cls, rule, 3)


HOST: list[tuple[str, Adjust, int, str]] = [
    ("stablelm", in_layer(1, faults.full_rope), 1, "self_attn"),
    ("gemma3_text", in_layer(1, faults.set_scaling(16**-0.5)), 1, "self_attn"),
    ("gemma2", in_layer(1, faults.drop_softcap), 1, "self_attn"),
    ("gemma3_text", in_layer(0, faults.drop_window), 0, ""),
    ("mixtral", in_layer(1, faults.router_scores(renormalize=False)), 1, "mlp"),
    ("olmoe", in_layer(0, faults.router_scores(renormalize=True)), 0, "mlp"),
]


@both
@pytest.mark.parametrize(("name", "adjust", "layer", "module"), HOST,
                         ids=["partial rope as full", "scale from head_dim", "soft-cap dropped",
                              "window dropped", "router not renormalized", "router renormalized"])  # fmt: skip
def test_a_fault_of_the_host_is_found_and_no_rule_blamed(
    name: str, adjust: Adjust, layer: int, module: str, dtype: torch.dtype
) -> None:
    assert judge(name, dtype=dtype).level3.passed
    by_host(judge(name, adjust=adjust, dtype=dtype), layer, module)


@both
def test_a_head_that_is_not_the_embedding(dtype: torch.dtype) -> None:
    judged = judge("tied", adjust=faults.other_head, dtype=dtype, prompts=True)
    assert judged.failed == {"lm_head"}
    assert judged.level2 is not None and not any(m.passed for m in judged.level2.modes)
    assert all(c.figures.passed for c in judged.level2.cache)  # the layers are right


@both
def test_a_chunk_boundary_off_by_one(dtype: torch.dtype) -> None:
    judged = judge("llama", adjust=in_layer(1, faults.late_chunk), dtype=dtype, prompts=True)
    assert judged.level3.passed  # nothing is wrong in one piece
    assert judged.level2 is not None
    assert {m.mode: m.passed for m in judged.level2.modes} == {
        "whole": True, "chunks": False, "decode": True, "batch": True,
    }  # fmt: skip
    bad = {(c.layer, c.part, c.mode) for c in judged.level2.cache if not c.figures.passed}
    assert min(bad) == (
        1,
        "keys",
        "chunks",
    )  # of layer 1 the keys, not the values before its attention
    assert (1, "values", "chunks") not in bad
    assert all(layer >= 1 and mode == "chunks" for layer, _, mode in bad)


def split_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same product, summed in three parts in another order."""
    parts = list(zip(x.split(24, -1), w.split(24, 0), strict=True))
    return sum((a.float() @ b.float() for a, b in reversed(parts)), torch.zeros(())).to(x.dtype)


def fused_mlp(x: torch.Tensor, gate: Any, up: Any, down: Any, **_: Any) -> torch.Tensor:
    """gate and up by one product."""
    both = x @ torch.cat([gate, up], dim=1)
    left, right = both.chunk(2, dim=-1)
    return (torch.nn.functional.silu(left) * right) @ down


def wide_mlp(x: torch.Tensor, gate: Any, up: Any, down: Any, **_: Any) -> torch.Tensor:
    """Everything in float32, rounded once."""
    wide, dtype = x.double() if x.dtype is torch.float32 else x.float(), x.dtype
    gate, up, down = (w.to(wide.dtype) for w in (gate, up, down))
    return ((torch.nn.functional.silu(wide @ gate) * (wide @ up)) @ down).to(dtype)


def wide_o_proj(x: torch.Tensor, w: Any, *_: Any, **__: Any) -> torch.Tensor:
    return split_sum(x, w)


def split_qkv(x: torch.Tensor, w: Any, *_: Any, **__: Any) -> torch.Tensor:
    """q, k and v by a product each, in float32."""
    return torch.cat([(x.float() @ p.float()).to(x.dtype) for p in w.split([64, 32, 32], 1)], -1)


HARMLESS: list[dict[str, Any]] = [
    {"mlp": fused_mlp}, {"mlp": wide_mlp}, {"o_proj": wide_o_proj}, {"qkv_proj": split_qkv},
    {"mlp": wide_mlp, "o_proj": wide_o_proj, "qkv_proj": split_qkv},
]  # fmt: skip


@both
@pytest.mark.parametrize(
    "changed", HARMLESS, ids=["fused", "fp32 mlp", "summation order", "split", "all"]
)
def test_harmless_variants_pass(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], dtype: torch.dtype
) -> None:
    called = []
    for name, function in changed.items():
        monkeypatch.setattr(nf, name, lambda *a, f=function, **k: called.append(1) or f(*a, **k))
    judged = judge("llama", dtype=dtype, prompts=True)
    assert called
    wrong = [
        (m.path, m.inputs, m.figures.why) for m in judged.level3.modules if not m.figures.passed
    ]
    assert not wrong and all(d.passed for d in judged.level3.depth)
    assert judged.level2 is not None and judged.level2.passed, judged.level2.modes
    different = [m for m in judged.level3.modules if m.figures.verdict != "bitwise equal"]
    # Without these the test could pass because nothing was changed.
    assert different or set(changed.values()) <= {fused_mlp, split_qkv}
    assert {m.figures.verdict for m in different} <= {"rounding order"}
