"""Where rules come from, and that each built-in one says what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.builtin import builtin_folder
from neuron_autoport.rules.library import load_rules, rules_digest

OTHER = """\
rule: {name}
summary: {summary}
match: y = rsqrt(x)
replace: y = NK.rms_norm(x)
"""


def write(folder: Path, name: str, summary: str = "mine") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(OTHER.format(name=name, summary=summary))
    return path


def test_the_built_in_rules() -> None:
    found = {r.name: (r.role, r.call, r.outputs) for r in load_rules()}
    assert found == {
        "add_rms_norm": ("add_rms_norm", "NK.add_rms_norm", ("y", "s")),
        "layer_norm": ("layer_norm", "NK.layer_norm", ("y",)),
        "layer_norm_fp32": ("layer_norm", "NK.layer_norm", ("y",)),
        "lone_linear": ("lone_linear", "torch", ("y",)),
        "qkv_gate_proj": ("qkv_proj", "NF.qkv_proj", ("q", "k", "v", "g")),
        "rms_norm_torch": ("rms_norm", "NK.rms_norm", ("y",)),
        "rope": ("rope", "NK.rope", ("y",)),
        "rope_fp32_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_backward_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_by_halves_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_complex_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_deinterleave_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_interleaved": ("rope", "NK.rope", ("y",)),
        "rope_interleaved_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_interleaved_tables_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_interleaved_fp32_repeated_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_trailing": ("rope", "torch", ("y",)),
        "qk_norm_rope": ("qk_norm_rope", "NK.qk_norm_rope", ("q2", "k2")),
        "qk_norm_rope_heads_first": ("qk_norm_rope", "NK.qk_norm_rope", ("q2", "k2")),
        "act_and_mul": ("act_and_mul", "NK.act_and_mul", ("y",)),
        "act_and_mul_clamped": ("act_and_mul", "NK.act_and_mul", ("y",)),
        "act_and_mul_fp32": ("act_and_mul", "NK.act_and_mul", ("y",)),
        "clamped_swiglu": ("act_and_mul", "NK.act_and_mul", ("y",)),
        "rope_interleaved_fp32_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_pair": ("rope", "NK.rope", ("q2", "k2")),
        "rope_partial_pair": ("rope", "NK.rope", ("q2", "k2")),
        "stacked_pair": ("stacked_pair", "NF.qkv_proj", ("a", "b")),
        "stacked_quad": ("stacked_pair", "NF.qkv_proj", ("a", "b", "c", "d")),
        "stacked_triple": ("stacked_pair", "NF.qkv_proj", ("a", "b", "c")),
        "ungated_mlp": ("ungated_mlp", "NF.mlp", ("y",)),
        "ungated_mlp_other": ("ungated_mlp", "torch", ("y",)),
        "gated_mlp": ("gated_mlp", "NF.mlp", ("y",)),
        "gated_mlp_packed": ("gated_mlp", "NF.mlp", ("y",)),
        "o_proj": ("o_proj", "NF.o_proj", ("y",)),
        "qkv_proj": ("qkv_proj", "NF.qkv_proj", ("q", "k", "v")),
        "qkv_proj_packed": ("qkv_proj", "NF.qkv_proj", ("q", "k", "v")),
        "qk_proj": ("qkv_proj", "NF.qkv_proj", ("q", "k")),
        "rms_norm": ("rms_norm", "NK.rms_norm", ("y",)),
        "rms_norm_fp32_input": ("rms_norm", "NK.rms_norm", ("y",)),
        "rms_norm_fp32_weightless": ("rms_norm_fp32_weightless", "NK.rms_norm", ("y",)),
        "rms_norm_rounded_root": ("rms_norm", "NK.rms_norm", ("y",)),
        "rms_norm_fp32_weight": ("rms_norm", "NK.rms_norm", ("y",)),
        "rms_norm_weightless": ("rms_norm", "NK.rms_norm", ("y",)),
        "rms_norm_zero_centered": ("rms_norm", "NK.rms_norm", ("y",)),
    }
    assert all(r.path.is_relative_to(builtin_folder()) for r in load_rules())


def test_a_users_rule_replaces_the_built_in_one_of_its_name(tmp_path: Path) -> None:
    write(tmp_path / "a", "gated_mlp")
    write(tmp_path / "a", "my_own")
    rules = {r.name: r for r in load_rules([tmp_path / "a"])}
    assert rules["gated_mlp"].summary == "mine" and rules["gated_mlp"].path.parent == tmp_path / "a"
    assert len(rules) == len(load_rules()) + 1
    write(tmp_path / "b", "gated_mlp", "the later folder's")
    later = {r.name: r for r in load_rules([tmp_path / "a", tmp_path / "b"])}
    assert later["gated_mlp"].summary == "the later folder's"
    assert {r.name: r for r in load_rules()}["gated_mlp"].summary != "mine"


def test_an_edited_file_is_read_anew(tmp_path: Path) -> None:
    write(tmp_path, "mine", "first")
    before = load_rules([tmp_path])
    write(tmp_path, "mine", "other")
    after = load_rules([tmp_path])
    assert {r.name: r for r in after}["mine"].summary == "other"
    assert rules_digest(before) != rules_digest(after) != rules_digest(load_rules())
    assert rules_digest(after) == rules_digest(load_rules([tmp_path]))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="does not exist"):
        load_rules([tmp_path / "none"])
