"""Rules that are wrong on purpose: the proof catches each, drops it, says so, and keeps the others.

Every wrong rule is a built-in one with one edit of its `replace`, under its own name.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_autoport.models.build import real_model
from neuron_autoport.pipeline import ProvedPort, proved_port
from neuron_autoport.port import Port
from neuron_autoport.report.summary import refusal_lines
from neuron_autoport.rewrite.install import install
from neuron_autoport.rules.library import load_rules
from neuron_autoport.rules.rule import Rule
from tests.helpers import few, small_config

# (model, class, rule, text of the good rule, text of the wrong one)
WRONG: list[tuple[str, str, str, str, str]] = [
    # The up projection dropped: gate stands for both.
    ("llama", "LlamaMLP", "gated_mlp", "gate.weight, up.weight,", "gate.weight, gate.weight,"),
    # Gate and up swapped.
    ("llama", "LlamaMLP", "gated_mlp", "gate.weight, up.weight,", "up.weight, gate.weight,"),
    ("phi3", "Phi3MLP", "gated_mlp_packed", "gate, up: split", "up, gate: split"),
    # Another activation.
    ("qwen2", "Qwen2MLP", "gated_mlp", "silu: NF.ActFnType.SiLU", "silu: NF.ActFnType.GELU"),
    ("gemma3_text", "Gemma3MLP", "gated_mlp", "gelu_tanh: NF.ActFnType.GELU_Tanh_Approx",
     "gelu_tanh: NF.ActFnType.GELU"),
    # Epsilon ten times off, and the function's default instead of the model's.
    ("llama", "LlamaRMSNorm", "rms_norm", "eps=eps", "eps=eps * 10"),
    ("llama", "LlamaRMSNorm", "rms_norm", ", eps=eps", ""),
    ("gemma3_text", "Gemma3RMSNorm", "rms_norm_zero_centered", "eps=eps", "eps=eps * 10"),
    # The weight without its one.
    ("gemma3_text", "Gemma3RMSNorm", "rms_norm_zero_centered", ", offset=1.0", ""),
    # No weight.
    ("llama", "LlamaRMSNorm", "rms_norm", "NK.rms_norm(x, w, eps", "NK.rms_norm(x, None, eps"),
    # Rounded before the weight in place of after: seen in bfloat16 only.
    ("olmo2", "Olmo2RMSNorm", "rms_norm_fp32_weight", ", weight_in_fp32=True", ""),
    # Key and value swapped, order of the stacked weights mixed up.
    ("llama", "LlamaAttention", "qkv_proj", "q, k, v = NF", "q, v, k = NF"),
    ("qwen2", "Qwen2Attention", "qkv_proj", "stack(q_proj, k_proj, v_proj)",
     "stack(q_proj, v_proj, k_proj)"),
    # Bias dropped.
    ("qwen2", "Qwen2Attention", "qkv_proj", ", bias=qkv.bias", ""),
    ("opt", "OPTAttention", "o_proj", ", bias=out.bias", ""),
    # The function does not take it: an error, not a wrong number.
    ("llama", "LlamaMLP", "gated_mlp", "x.flatten(0, -2)", "x"),
    # The result has another shape.
    ("llama", "LlamaMLP", "gated_mlp", ".unflatten(0, x.shape[:-1])", ""),
]  # fmt: skip


def rules_with(folder: Path, name: str, good: str, wrong: str) -> tuple[Rule, ...]:
    """The built-in rules, one of them with its text changed."""
    text = next(r.text for r in load_rules() if r.name == name)
    assert text.count(good) == 1, text
    (folder / f"{name}.yaml").write_text(text.replace(good, wrong), encoding="utf-8")
    return few(load_rules([folder]))


def config_of(model_type: str) -> Any:
    more = {} if model_type == "opt" else {"rms_norm_eps": 1e-5}
    return small_config(model_type, **more)


def sites(port: Port) -> Counter[tuple[str, str]]:
    """(class, rule) of every site, counted over instances."""
    found: Counter[tuple[str, str]] = Counter()
    for path, plan in port.where.items():
        for site in plan.sites:
            assert plan.trace.module_class is type(port.model.get_submodule(path))
            found[plan.trace.module_class.__name__, site.rule.name] += 1
    return found


def assert_same_logits(proved: ProvedPort, config: Any) -> None:
    model = real_model(config, attn_implementation="eager")
    twin = copy.deepcopy(model)
    for path, plan in proved.port.where.items():
        if plan in proved.generated.classes:
            install(twin.get_submodule(path), plan, proved.generated.classes[plan])
    ids = torch.arange(3, 21).reshape(2, 9)
    with torch.no_grad():
        expected, found = (m(ids, use_cache=False).logits for m in (model, twin))
    scale = expected.abs().max()
    assert (found - expected).abs().max() <= 2e-5 * scale


_good: dict[str, Counter[tuple[str, str]]] = {}


def good_sites(model_type: str) -> Counter[tuple[str, str]]:
    if model_type not in _good:
        proved = proved_port(config_of(model_type), few())
        assert proved.proof.dropped == ()
        _good[model_type] = sites(proved.port)
    return _good[model_type]


@pytest.mark.parametrize(
    ("model_type", "cls", "rule", "good", "wrong"),
    WRONG,
    ids=[f"{w[0]} {w[2]}: {w[4] or f'no {w[3]}'}" for w in WRONG],
)
def test_caught(
    tmp_path: Path, model_type: str, cls: str, rule: str, good: str, wrong: str
) -> None:
    config = config_of(model_type)
    proved = proved_port(config, rules_with(tmp_path, rule, good, wrong), use_cache=False)
    dropped = {(d.class_name, d.rule) for d in proved.proof.dropped}
    assert dropped == {(cls, rule)}, proved.proof.dropped
    for d in proved.proof.dropped:
        assert d.code in ("AP701", "AP702")
        assert re.search(r"\d\.\de[-+]\d\d|inf|Error", d.figures), d.figures
    expected = good_sites(model_type).copy()
    count = expected.pop((cls, rule))
    assert count > 0
    if rule == "rms_norm":  # the smaller rule inside it stands
        expected[cls, "rms_norm_weightless"] = count
    assert sites(proved.port) == expected
    assert any(line.startswith(f"{cls}: {rule} dropped, AP70") for line in refusal_lines(proved))
    assert_same_logits(proved, config)


def test_two_wrong_rules_in_one_model(tmp_path: Path) -> None:
    rules_with(tmp_path, "qkv_proj", ", bias=qkv.bias", "")
    rules = rules_with(tmp_path, "rms_norm", "eps=eps", "eps=eps * 10")
    config = config_of("qwen2")
    proved = proved_port(config, rules, use_cache=False)
    dropped = {(d.class_name, d.rule) for d in proved.proof.dropped}
    assert dropped == {("Qwen2Attention", "qkv_proj"), ("Qwen2RMSNorm", "rms_norm")}
    left = {("Qwen2Attention", "o_proj"), ("Qwen2MLP", "gated_mlp")}
    assert set(sites(proved.port)) == left | {("Qwen2RMSNorm", "rms_norm_weightless")}
    assert_same_logits(proved, config)
